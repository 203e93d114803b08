// Package operate tests what operators rely on: a break ends exactly the holder that it names and
// lets no other client in alongside that holder, the views and the watch show what is in the bucket
// and admit what they do not know, and the documented permissions are sufficient and grant nothing
// beyond that.
package operate
