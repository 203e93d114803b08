package admin

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Role is what a NATS user is allowed to do: see [Permissions].
type Role int

const (
	// RoleUser acquires locks, waits for them and inspects them.
	RoleUser Role = iota
	// RoleObserver lists, inspects and watches locks, but cannot write.
	RoleObserver
	// RoleOperator inspects locks and breaks them, but cannot queue.
	RoleOperator
	// RoleAdmin does what a user and an operator do, and also creates, repairs and deletes the
	// bucket.
	RoleAdmin
)

func (r Role) String() string {
	switch r {
	case RoleUser:
		return "user"
	case RoleObserver:
		return "observer"
	case RoleOperator:
		return "operator"
	case RoleAdmin:
		return "admin"
	}
	return fmt.Sprintf("Role(%d)", int(r))
}

// Access describes the NATS user that [Permissions] returns the subjects for. The zero value is
// a RoleUser for all locks in the default bucket, reached without a domain.
type Access struct {
	// Pattern matches the names of the locks. Any token can be "*", and the last one can be ">",
	// which stands for the rest of the name. The default is ">". "orders.>" matches the names
	// under orders, but not orders itself.
	Pattern string
	Role    Role
	// Bucket is the bucket's name, "natslock" by default.
	Bucket string
	// Domain is the JetStream domain of the bucket if the user connects from outside that
	// domain. Leave it empty on a server of the domain, which removes the domain from a subject
	// before it checks permissions.
	Domain string
	// APIPrefix is the prefix under which another account's JetStream API is imported. It cannot
	// be combined with Domain.
	APIPrefix string
	// InboxPrefix is the inbox prefix of the user's connections (nats.CustomInboxPrefix), _INBOX
	// by default. If each user has its own prefix, no user can read the replies to another.
	InboxPrefix string
	// OwnOnly withholds the two requests that can read any record in the bucket and thus show
	// the owners and metadata of all locks. Without them the library lists queues more slowly,
	// the server logs one refusal of each request per connection, and a read can return
	// [natslock.ErrUnavailable] while a replica lags or the bucket's allow_direct is off.
	OwnOnly bool
	// History allows reading the bucket's history, which covers locks of any name: see
	// [Admin.History]. An observer of all names may always read it. With History, an admin may
	// also create, change and delete it.
	History bool
}

// Permission is one subject that a user needs.
type Permission struct {
	Subject string
	For     string // what the library uses the subject for
	// Leaks describes everything that the permission allows or reveals beyond the locks that
	// [Access.Pattern] matches. It is empty if there is nothing.
	Leaks string
}

// PermissionSet contains exactly the permissions that a user needs.
type PermissionSet struct {
	Publish, Subscribe []Permission
}

// maxPrefix limits a domain, an API prefix and an inbox prefix, in bytes.
const maxPrefix = 255

// Permissions returns the subjects that a NATS user needs for locks. The server can refuse all
// other subjects. A call that needs a refused subject returns [natslock.ErrPermission].
//
// Permissions separate names, not people: a user that is allowed to take a lock can also delete
// its record or write a false one. Within one account, a user that is allowed to publish any
// request can name another user's key as its reply subject, and the server then stores the reply
// there. Give users that do not trust each other separate accounts.
//
// The error matches [natslock.ErrInvalid] if the pattern cannot match any name or another field
// is invalid, and kvstore.ErrInvalidKey if the bucket's name is invalid.
func Permissions(a Access) (PermissionSet, error) {
	var p PermissionSet
	holders, readers, waiters, err := record.KeyPatterns(cmp.Or(a.Pattern, ">"))
	if err != nil {
		return p, err
	}
	stream, err := kvstore.Config{Bucket: a.Bucket}.StreamConfig()
	if err != nil {
		return p, err
	}
	if a.Role < RoleUser || a.Role > RoleAdmin {
		return p, fmt.Errorf("%w: Access: there is no %v", record.ErrInvalidOption, a.Role)
	}
	api := "$JS.API."
	switch {
	case a.Domain != "" && a.APIPrefix != "":
		return p, fmt.Errorf("%w: Access: a domain and an API prefix are mutually exclusive", record.ErrInvalidOption)
	case a.Domain != "":
		api = "$JS." + a.Domain + ".API."
	case a.APIPrefix != "":
		api = strings.TrimSuffix(a.APIPrefix, ".") + "."
	}
	inbox := cmp.Or(strings.TrimSuffix(a.InboxPrefix, "."), strings.TrimSuffix(nats.InboxPrefix, "."))
	for what, subject := range map[string]string{"domain": a.Domain, "API prefix": a.APIPrefix, "inbox prefix": a.InboxPrefix} {
		if len(subject) > maxPrefix {
			return p, fmt.Errorf("%w: Access: the %s has %d bytes; the limit is %d", record.ErrInvalidOption, what, len(subject), maxPrefix)
		}
		if strings.ContainsAny(subject, " \t\r\n*>\"\\") || what == "domain" && strings.Contains(subject, ".") {
			return p, fmt.Errorf("%w: Access: %q is not a valid %s", record.ErrInvalidOption, subject, what)
		}
	}

	keys := strings.TrimSuffix(stream.Subjects[0], ">")
	puts := keys
	if api != "$JS.API." {
		puts = api + keys
	}
	publish := func(subject, purpose, leaks string) {
		p.Publish = append(p.Publish, Permission{subject, purpose, leaks})
	}
	write := func(keys []string, purpose, leaks string) {
		for _, k := range keys {
			publish(puts+k, purpose, leaks)
			leaks = "" // listed only once
		}
	}
	// An observer of all names can read every record anyway, so it may read the history too.
	seesAll := a.Role == RoleObserver && cmp.Or(a.Pattern, ">") == ">"
	const anyone = "can also end the hold of others on these locks: permissions cannot distinguish their writes from the holder's"
	switch a.Role {
	case RoleObserver:
	case RoleOperator:
		write(holders, "break holders and writers", anyone)
		write(readers, "break readers", "")
	default:
		write(holders, "take, renew, release, break", anyone)
		write(readers, "read-lock", "")
		write(waiters, "wait in the queue", "can also remove others from the queue")
	}
	read := append(append(append([]string{}, holders...), readers...), waiters...)
	publish(api+"STREAM.INFO."+stream.Name, "find the bucket, list keys, prove that readers have left", "shows the names of all locks in the bucket, which ones are held, and how many clients wait")
	for _, k := range read {
		publish(api+"DIRECT.GET."+stream.Name+"."+keys+k, "read one record", "")
	}
	if !a.OwnOnly {
		const shows = "reads any record in the bucket: owner, host, pid and metadata of every holder and waiter"
		publish(api+"DIRECT.GET."+stream.Name, "read a whole queue at once", shows)
		publish(api+"STREAM.MSG.GET."+stream.Name, "read from the stream's leader when a replica lags or allow_direct is off", shows)
	}
	if a.History || seesAll {
		history := kvstore.HistoryStream(&jetstream.StreamInfo{Config: stream}, 0, 0).Name
		publish(api+"STREAM.INFO."+history, "find the history", "")
		publish(api+"DIRECT.GET."+history, "read the history", "shows everything that happened to any lock in the bucket: owner, host, pid and metadata")
		if a.Role == RoleAdmin {
			publish(api+"STREAM.CREATE."+history, "create the history", "with other sources, can copy any stream of the account into it")
			publish(api+"STREAM.UPDATE."+history, "change its age and size", "can copy any stream into it")
			publish(api+"STREAM.DELETE."+history, "delete the history", "destroys the record of what happened")
		}
	}
	if a.Role == RoleAdmin {
		publish(api+"STREAM.CREATE."+stream.Name, "create the bucket", "with a mirror or sources, can copy any stream of the account into it")
		publish(api+"STREAM.UPDATE."+stream.Name, "repair the bucket", "can make it unfit for locks and copy any stream into it")
		publish(api+"STREAM.DELETE."+stream.Name, "delete the bucket, to re-create it", "ends every lock in it")
		publish(api+"INFO", "check that the servers are not too old before the bucket is created; lockctl doctor: limits", "shows the account's use of JetStream")
		publish(api+"STREAM.LIST", "lockctl doctor: mirrors", "shows the configuration of all streams of the account")
		publish(puts+"probe", "check whether a new bucket on a cluster accepts writes", "")
		publish("$SYS.REQ.USER.INFO", "name the account in which a bucket was created", "shows the user's own permissions")
	}

	// The token in the middle is the bucket's ID, which changes if the bucket is re-created.
	republished := strings.TrimSuffix(strings.Replace(stream.RePublish.Destination, stream.Metadata["natslock.id"], "*", 1), ">")
	for _, k := range read {
		p.Subscribe = append(p.Subscribe, Permission{republished + k, "receive notifications of changes", ""})
	}
	leaks := "reveals replies to everyone in the account with the same inbox prefix; give each user a prefix of its own"
	if a.InboxPrefix != "" {
		leaks = ""
	}
	p.Subscribe = append(p.Subscribe, Permission{inbox + ".>", "receive replies", leaks})
	return p, nil
}

// String returns a block of server configuration that grants a user exactly these permissions.
// Comments in the block describe what each permission is used for and what it leaks.
func (p PermissionSet) String() string {
	var b strings.Builder
	list := func(verb string, all []Permission) {
		fmt.Fprintf(&b, "  %s: {\n    allow: [\n", verb)
		purpose := ""
		for _, perm := range all {
			if perm.For != purpose {
				purpose = perm.For
				fmt.Fprintf(&b, "      # %s\n", purpose)
			}
			if perm.Leaks != "" {
				fmt.Fprintf(&b, "      #   leaks: %s\n", perm.Leaks)
			}
			fmt.Fprintf(&b, "      %s\n", strconv.Quote(perm.Subject))
		}
		b.WriteString("    ]\n  }\n")
	}
	b.WriteString("permissions: {\n")
	list("publish", p.Publish)
	list("subscribe", p.Subscribe)
	b.WriteString("}\n")
	return b.String()
}
