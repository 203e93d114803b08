//go:build unix

package main_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"

	main "github.com/natslock/locks/cmd/lockctl"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// TestScripts runs the operator sessions in testdata/script. In addition to the commands of package
// testscript they can use:
//
//	server [-config FILE] [-nojetstream]   start a server and set NATS_URL to its address
//	lockctl ARGUMENT...                    run lockctl, in this process if possible
//	exit CODE                              require that the last lockctl exited with this code
//	until REGEXP COMMAND...                repeat a command until its output matches
//	nats request SUBJECT [FILE]            print the reply to a request
//
// "exec lockctl" runs lockctl in its own process, which a trailing "&name&" leaves in the background.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			for _, name := range []string{"HOME", "XDG_CONFIG_HOME"} {
				env.Setenv(name, env.WorkDir)
			}
			env.Setenv("ESC", "\x1b")
			env.Setenv("PATH", filepath.Dir(binary)+":"+env.Getenv("PATH"))
			env.Values[session{}] = &session{TB: env.T().(testing.TB)}
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"server": scriptServer, "lockctl": scriptLockctl, "exit": scriptExit, "until": scriptUntil, "nats": scriptNATS,
		},
	})
}

// session holds what the commands of one script share.
type session struct {
	testing.TB
	code int // exit code of the last lockctl
}

func sessionOf(ts *testscript.TestScript) *session { return ts.Value(session{}).(*session) }

// scriptVariables lists the variables that a script may set for a lockctl that runs in this
// process.
var scriptVariables = []string{"HOME", "XDG_CONFIG_HOME", "PATH", "SHELL", "NATS_URL", "NATS_CONTEXT", "NATS_USER", "NATS_PASSWORD", "NATS_TIMEOUT"}

func environ(ts *testscript.TestScript) (all []string) {
	for _, name := range scriptVariables {
		if value := ts.Getenv(name); value != "" {
			all = append(all, name+"="+value)
		}
	}
	return all
}

// include matches a line in a server's configuration that includes a file.
var include = regexp.MustCompile(`(?m)^\s*include (\S+)$`)

func scriptServer(ts *testscript.TestScript, neg bool, args []string) {
	var opts []testutil.ServerOption
	for len(args) > 0 {
		switch {
		case args[0] == "-nojetstream":
			opts, args = append(opts, testutil.WithoutJetStream()), args[1:]
		case args[0] == "-config" && len(args) > 1:
			text := include.ReplaceAllStringFunc(ts.ReadFile(args[1]), func(line string) string { return ts.ReadFile(strings.Fields(line)[1]) })
			opts, args = append(opts, testutil.WithConfigText(text)), args[2:]
		default:
			neg, args = true, nil
		}
	}
	if neg {
		ts.Fatalf("usage: server [-config FILE] [-nojetstream]")
	}
	ts.Setenv("NATS_URL", testutil.RunServer(sessionOf(ts), opts...).URL())
}

func scriptLockctl(ts *testscript.TestScript, neg bool, args []string) {
	s := sessionOf(ts)
	var out, errs string
	s.code, out, errs = lockctlIn(ts, args)
	fmt.Fprint(ts.Stdout(), out)
	fmt.Fprint(ts.Stderr(), errs)
	if neg != (s.code != 0) {
		ts.Fatalf("lockctl has ended with %d", s.code)
	}
}

// lockctlIn runs lockctl with a script's environment.
func lockctlIn(ts *testscript.TestScript, args []string) (code int, stdout, stderr string) {
	var out, errs kit.Log
	if inside(args) {
		code = main.Main(environ(ts), strings.NewReader(""), &out, &errs, args...)
		return code, out.String(), errs.String()
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), environ(ts), &out, &errs
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func scriptExit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: exit CODE")
	}
	if code := sessionOf(ts).code; strconv.Itoa(code) != args[0] {
		ts.Fatalf("lockctl has ended with %d", code)
	}
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND...")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	var out, errs string
	kit.Eventually(sessionOf(ts), fmt.Sprintf("%q from %q", args[0], args[1:]), func() bool {
		if args[1] == "lockctl" {
			_, out, errs = lockctlIn(ts, args[2:])
		} else {
			cmd := exec.Command(args[1], args[2:]...)
			cmd.Dir, cmd.Env = ts.MkAbs("."), environ(ts)
			b, _ := cmd.Output()
			out = string(b)
		}
		return want.MatchString(out + errs)
	})
	fmt.Fprint(ts.Stdout(), out)
	fmt.Fprint(ts.Stderr(), errs)
}

func scriptNATS(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 || args[0] != "request" {
		ts.Fatalf("usage: nats request SUBJECT [FILE]")
	}
	var data string
	if len(args) > 2 {
		data = ts.ReadFile(args[2])
	}
	nc, err := nats.Connect(ts.Getenv("NATS_URL"), nats.UserInfo(ts.Getenv("NATS_USER"), ts.Getenv("NATS_PASSWORD")))
	ts.Check(err)
	defer nc.Close()
	answer, err := nc.Request(args[1], []byte(data), kit.Patience)
	ts.Check(err)
	fmt.Fprintln(ts.Stdout(), string(answer.Data))
}
