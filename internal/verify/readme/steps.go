//go:build unix

package main

// step is one line that somebody types.
type step struct {
	line   string // shown; run in the background if it ends with "&"
	run    string // run instead: what the page need not know
	until  string // of a line in the background: the shell's condition for going on
	hidden bool
}

// steps are what the README shows, in this order. Add yours here, run "make
// readme", and teach plain in main.go what of its output differs from one time
// to the next.
var steps = []step{
	{line: "lockctl server &", run: "lockctl server --port 0 --dir store &", until: "grep -q nats:// out.0"},
	{line: "lockctl run deploy --meta ticket=OPS-1 -- ./deploy.sh &", until: held("deploy")},
	{line: "lockctl run deploy -- ./deploy.sh &", until: "lockctl info deploy | grep -q 'queue of 1'"},
	{line: "lockctl run --read index -- ./query.sh &", until: held("index")},
	{line: "lockctl ls"},
	{line: `lockctl run -n deploy -- ./deploy.sh; echo "exit code $?"`},
}

// held is the condition that somebody holds a lock.
func held(name string) string { return "lockctl info " + name + " | grep -q ': held'" }
