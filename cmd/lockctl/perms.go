package main

import (
	"fmt"
	"strconv"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock/admin"
)

type permsCmd struct {
	Pattern *string `arg:"" type:"name" optional:"" help:"Names of locks: \"*\" stands for one token, a final \">\" for all that follow. Required for a user."`
	Role    string  `enum:"user,observer,operator,admin" default:"user" placeholder:"ROLE" help:"user, observer, operator or admin (default ${default})."`
	OwnOnly bool    `help:"Do not let the user read records of other names."`
	History bool    `help:"Let the user read the history of all locks, and an admin create it."`
	JSON    bool    `name:"json" help:"Print an object with the subjects."`
}

func (*permsCmd) Help() string {
	return `Prints the permissions that a NATS user needs for the locks whose names match, to paste
into the user's entry in a server's configuration. Comments say what each subject is for,
and what it shows or allows beyond these locks. Needs no server.

  user      takes locks, waits for them, reads them
  observer  reads locks and their history, writes nothing
  operator  reads and breaks locks, cannot wait in a queue
  admin     user and operator, and creates, repairs and deletes the bucket

Give the --bucket, --js-domain, --js-api-prefix and --inbox-prefix that the user will
connect with. On a server of the domain itself omit --js-domain: there the server removes
the domain before it checks permissions. With its own inbox prefix, no other user can read
the user's answers.

A user sees the owners and metadata of all locks in the bucket. --own-only limits that to
its own locks, but not their names. Reads are slower then, and unavailable while a replica
lags or allow_direct is off. The server logs up to two refusals per connection.

An observer of all names has --history. One of some names has not, because a history
contains all names.

With --json an object: "role", "pattern", "bucket", and "publish" and "subscribe", arrays
of objects with "subject", "for" and "leaks".

  lockctl perms 'orders.>' --inbox-prefix _INBOX_orders >>orders.conf
  lockctl perms --role observer --inbox-prefix _INBOX_dashboard >>dashboard.conf`
}

// permsJSON is the output of --json. Scripts depend on it, so fields may be added but never
// renamed.
type permsJSON struct {
	Role      string           `json:"role"`
	Pattern   string           `json:"pattern"`
	Bucket    string           `json:"bucket"`
	Publish   []permissionJSON `json:"publish"`
	Subscribe []permissionJSON `json:"subscribe"`
}

type permissionJSON struct {
	Subject string `json:"subject"`
	For     string `json:"for"`
	Leaks   string `json:"leaks"` // empty if nothing leaks
}

var roles = map[string]admin.Role{
	admin.RoleUser.String(): admin.RoleUser, admin.RoleObserver.String(): admin.RoleObserver,
	admin.RoleOperator.String(): admin.RoleOperator, admin.RoleAdmin.String(): admin.RoleAdmin,
}

func (c *permsCmd) Run(g *session.Globals) error {
	role, pattern := roles[c.Role], ">"
	switch {
	case c.Pattern == nil && role == admin.RoleUser:
		return tool.Usagef("give a pattern for the names of the user's locks; \">\" matches all names")
	case c.Pattern != nil && *c.Pattern == "": // an unset variable, which must not mean all names
		return tool.Usagef("the pattern is empty; \">\" matches all names")
	case c.Pattern != nil:
		pattern = *c.Pattern
	}
	set, err := admin.Permissions(admin.Access{
		Pattern: pattern, Role: role, Bucket: g.Bucket, OwnOnly: c.OwnOnly, History: c.History,
		Domain: g.Domain, APIPrefix: g.APIPrefix, InboxPrefix: g.InboxPrefix,
	})
	if err != nil {
		return err
	}
	show.CheckPattern(g.Console, pattern)
	if c.JSON {
		return show.WriteJSON(g.Out, permsJSON{c.Role, show.Name(pattern), g.Bucket, permissionsJSON(set.Publish), permissionsJSON(set.Subscribe)})
	}
	fmt.Fprintf(g.Out, "# %s of the locks %s in bucket %s\n", c.Role, strconv.Quote(pattern), g.Bucket)
	fmt.Fprint(g.Out, "# Within an account, a user that may send any request can have the answer stored under\n"+
		"# another user's key, by naming that as the reply subject. Users that do not trust each\n"+
		"# other need separate accounts.\n")
	fmt.Fprint(g.Out, set)
	return nil
}

func permissionsJSON(all []admin.Permission) []permissionJSON {
	out := make([]permissionJSON, len(all))
	for i, p := range all {
		out[i] = permissionJSON(p)
	}
	return out
}
