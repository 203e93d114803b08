//go:build unix

package main

// step is a line that a user types.
type step struct {
	line   string // the line shown; it runs in the background if it ends with "&"
	run    string // what to run instead, with details that the page need not show
	until  string // for a background line, the shell condition for continuing
	hidden bool
}

// server is the first step of each session. The other steps use the server that it starts.
var server = step{line: "lockctl server &", run: "lockctl server --port 0 --dir store &", until: "grep -q nats:// out.0"}

// sessions holds the lines that each page shows, in order. To add a session, list it here, run
// "make docs", and teach plain in main.go which parts of its output differ from one run to the
// next.
var sessions = map[string][]step{
	"README.md": {
		server,
		{line: "lockctl run deploy --meta ticket=OPS-1 -- sleep 60 &", until: held("deploy")},
		{line: "lockctl run deploy -- sleep 60 &", until: queued("deploy")},
		{line: "lockctl run --read index -- sleep 60 &", until: held("index")},
		{line: "lockctl ls"},
		{line: `lockctl run -n deploy -- sleep 60; echo "exit code $?"`},
	},
	"docs/guide/getting-started.md": {
		server,
		{line: "export NATS_URL=nats://127.0.0.1:4222", run: "true"}, // with the real port
		{line: "lockctl run hello -- sleep 300 &", until: held("hello")},
		{line: "lockctl ls"},
		{line: `lockctl run -n hello -- echo "this does not run"; echo "exit code $?"`},
	},
	"docs/operate/incidents.md": {
		{hidden: true, run: server.run, until: server.until},
		{hidden: true, run: `bash -c 'echo $$ >pid; exec lockctl run deploy --meta ticket=OPS-1 -- ./deploy.sh' &`, until: held("deploy")},
		{hidden: true, run: "lockctl run deploy -- ./deploy.sh &", until: queued("deploy")},
		{hidden: true, run: "kill -STOP $(cat pid)"}, // as if its machine hung
		{line: "lockctl info deploy"},
		{line: `lockctl break deploy --force --reason "host db-1 is gone"`},
	},
}

// held returns a shell condition that is true if the lock has a holder.
func held(name string) string { return "lockctl info " + name + " | grep -q ': held'" }

// queued returns a shell condition that is true if exactly one waiter is queued for the lock.
func queued(name string) string { return "lockctl info " + name + " | grep -q 'queue of 1'" }
