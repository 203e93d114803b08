// Package operate guards what operators rely on: breaks end the holder that they name, and let nobody
// in beside it; the views and the watch show what the bucket has, and say when they do not know; the
// permissions that the documents give are enough, and no more.
package operate
