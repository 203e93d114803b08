// Package operate guards what operators rely on. A break ends the holder that it names, and lets no
// other client in alongside that holder. The views and the watch show what is in the bucket, and
// say when they do not know. The documented permissions are sufficient, and grant nothing more.
package operate
