// Package operate guards what operators rely on. A break ends the holder that it names, and lets no
// other client in alongside it. The views and the watch show what the bucket has, and say when they
// do not know. The documented permissions are enough, and no more than that.
package operate
