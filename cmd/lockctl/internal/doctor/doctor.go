// Package doctor checks everything that locks depend on: the servers, the bucket with its
// settings and history, and the user's permissions. Finally, it takes real locks.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock/admin"
)

// Command is "lockctl doctor".
type Command struct {
	Pattern     string   `arg:"" type:"name" optional:"" default:">" help:"For users with access to only some names: try locks with one of these."`
	OtherDomain []string `placeholder:"NAME" help:"Also search this domain for a second bucket; can be repeated."`
	Monitor     []string `placeholder:"URL" help:"Monitoring address of a server, such as http://127.0.0.1:8222, which shows how it writes to disk; can be repeated."`
	Repair      bool     `help:"Remove records whose TTL has ended, at most 10,000."`
	Verbose     bool     `short:"v" help:"Also show the bucket's settings that are ok."`
	JSON        bool     `name:"json" help:"Print an object."`
}

// Help returns the detailed help for the command.
func (*Command) Help() string {
	return `Checks everything that locks depend on: the servers that the context and the cluster name,
their versions, certificates and clocks, JetStream, replicas, every setting of the bucket,
its room, mirrors, a bucket of the same name in another domain, the history, names used by
locks of different kinds, and this user's permissions. Then it takes, renews and releases
locks under its own names. It changes nothing and leaves nothing behind unless told to. It
judges by a server that reaches the leader of the bucket.

A row has a finding and its repair. It is ok, warning (locks are safe, but slower or at
more risk than necessary), error, or unknown. The doctor tries only what this user's role
is for: an observer takes no lock. What it did not check is listed below the rows.

The row "renewals" shows the demand of the locks, three writes per TTL of each record, and
how much of it was confirmed in time. See docs/operate/many-locks.md for what to do.

A server can forget TTLs in a restart. Records whose TTL has ended block no client, but stay
in "lockctl ls" until the lock is taken again. --repair removes those that the pattern
matches, and prints how many are left. It never touches a live client's record.

  lockctl doctor
  lockctl doctor 'orders.>'

With --json an object: "server", "bucket", "status" (the worst of the rows), "exit_code",
"checks" (with "check", "status", "found", "repair"), "left_out" (with "check" and "why"),
and "renewals" (with "records", "demand_per_second", "confirmed_per_second", "late" and
"latest_seconds"; null if the locks were not listed).

Exit code: 0 without warnings and errors, even if a row is unknown, and
  1    there are warnings
  69   no server, no JetStream, or no leader of the bucket
  70   locks or their history do not work for another reason
  77   the server refuses the user something that locks need
  78   the bucket is missing or unfit for locks`
}

// Statuses of a check. Scripts depend on these words.
const (
	checkOK      = "ok"
	checkUnknown = "unknown"
	checkWarning = "warning"
	checkError   = "error"
)

// finding is a row of the output. Scripts depend on it, so fields may be added but never
// renamed.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Found  string `json:"found"`
	Repair string `json:"repair"` // empty if nothing is wrong

	code int // exit code of an error
}

// omission is a check that was left out because it does not apply to the user's role, or
// because the user has not said where to look.
type omission struct {
	Check string `json:"check"`
	Why   string `json:"why"`
}

type diagnosis struct {
	Server string    `json:"server"`
	Bucket string    `json:"bucket"`
	Status string    `json:"status"`
	Code   int       `json:"exit_code"`
	Checks []finding `json:"checks"`

	LeftOut []omission `json:"left_out"`

	Renewals *renewals `json:"renewals"` // nil if the locks were not listed
}

// doctor is the state of a single run of the command.
type doctor struct {
	*Command
	g   *session.Globals
	s   *session.Session
	cfg kvstore.Config
	// name and rwName are the locks that the doctor tries, and subject is the subject of the
	// mutex's notifications.
	name, rwName, subject string
	role                  admin.Role // the role that the user's permissions match
	visited               []visited
	info                  *kvstore.Info
	diagnosis
}

// Run performs the checks and prints the results. Its error has the exit code of the worst
// result, or says why there are no results.
func (c *Command) Run(g *session.Globals) error {
	name, err := ownName(c.Pattern)
	if err != nil {
		return err
	}
	rwName, _ := ownName(c.Pattern)
	d := &doctor{Command: c, g: g, name: name, rwName: rwName}
	d.Bucket, d.LeftOut = g.Bucket, []omission{}
	d.cfg = kvstore.Config{Bucket: g.Bucket, NoCreate: true, Logger: slog.New(slog.DiscardHandler)}
	if _, err := d.cfg.StreamConfig(); err != nil {
		return err
	}
	if err := d.visit(); err != nil {
		return err
	}
	d.conclude()
	if c.JSON {
		err = show.WriteJSON(g.Out, d.diagnosis)
	} else {
		d.print()
	}
	if err == nil && d.Code != 0 {
		err = &tool.Error{Code: d.Code}
	}
	return err
}

// visit performs the checks, except those that depend on a check that failed. A failure becomes
// a row; visit returns an error only for incorrect usage or cancellation.
func (d *doctor) visit() (err error) {
	d.s, err = d.g.Connect()
	if err != nil {
		if errors.Is(err, context.Canceled) || tool.CodeOf(err) == tool.ExitUsage {
			return err
		}
		d.Server = d.s.URL
		d.fail("connection", err, "see \"lockctl --help-connection\" for the flags of the connection")
		return nil
	}
	defer d.s.End()
	d.Server = d.s.URL
	d.connection()
	d.servers()
	// The rows report the server's refusals, so the handler need not print them.
	d.s.NC.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	if !d.jetStream() {
		return nil
	}
	notified, until := d.listen(), time.Now().Add(listening)
	if !d.bucket() {
		return nil
	}
	d.settings()
	d.room()
	d.mirrors()
	d.history()
	d.domains()
	d.replicas()
	d.disks()
	d.permissions()
	d.locks()
	d.second(notified, until)
	return nil
}

func (d *doctor) add(check, status, repair, format string, args ...any) {
	f := finding{Check: check, Status: status, Found: show.Plain(fmt.Sprintf(format, args...)), Repair: repair}
	if status == checkError {
		f.code = tool.ExitInternal
	}
	d.Checks = append(d.Checks, f)
}

func (d *doctor) ok(check, format string, args ...any) { d.add(check, checkOK, "", format, args...) }

// leave records that a check was left out.
func (d *doctor) leave(check, format string, args ...any) {
	d.LeftOut = append(d.LeftOut, omission{check, show.Plain(fmt.Sprintf(format, args...))})
}

// fail adds a row for an error.
func (d *doctor) fail(check string, err error, repair string) {
	d.add(check, checkError, repair, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	d.Checks[len(d.Checks)-1].code = tool.CodeOf(err)
}

// conclude sets the overall status and the exit code.
func (d *doctor) conclude() {
	d.Status = checkOK
	codes := map[int]bool{}
	for _, f := range d.Checks {
		switch {
		case f.Status == checkError:
			d.Status = checkError
			codes[f.code] = true
		case f.Status == checkWarning && d.Status == checkOK:
			d.Status = checkWarning
		}
	}
	switch d.Status {
	case checkWarning:
		d.Code = 1
	case checkError:
		// Prefer the code of an error that can cause the others.
		d.Code = tool.ExitInternal
		for _, code := range []int{tool.ExitUnavailable, tool.ExitConfig, tool.ExitPermission} {
			if codes[code] {
				d.Code = code
				break
			}
		}
	}
}

var statusColors = map[string]text.Colors{
	checkOK: {text.FgGreen}, checkUnknown: {text.Faint}, checkWarning: {text.FgYellow}, checkError: {text.FgRed},
}

func (d *doctor) print() {
	t := show.NewTable(d.g.Out, "status", "check", "found")
	for _, f := range d.Checks {
		t.AppendRow(table.Row{statusColors[f.Status].Sprint(f.Status), f.Check, f.Found})
		if f.Repair != "" {
			t.AppendRow(table.Row{"", "", show.Faint.Sprint("repair: ") + f.Repair})
		}
	}
	t.Render()
	for _, o := range d.LeftOut {
		fmt.Fprintf(d.g.Out, "%s %s: %s\n", show.Faint.Sprint("left out:"), o.Check, o.Why)
	}
	warnings, faults := 0, 0
	for _, f := range d.Checks {
		switch f.Status {
		case checkWarning:
			warnings++
		case checkError:
			faults++
		}
	}
	fmt.Fprintf(d.g.Out, "%s at %s: %s, %s, %s\n", d.Bucket, d.Server, show.Count(len(d.Checks), "check"), show.Count(warnings, "warning"), show.Count(faults, "error"))
}
