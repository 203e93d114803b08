package doctor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

// wordAfter is how long a lock's notification may take to arrive after the grant. The server
// sends the notification before it responds to the acquire.
const wordAfter = 2 * time.Second

// permissions tries every subject that the library needs, with requests that change nothing. To
// detect a refusal, a ping after the request suffices, because the server reports the refusal
// before it responds to the ping. The refusals reveal the user's role. It is an error if the
// server refuses something that this role needs.
func (d *doctor) permissions() {
	o := d.s.JS.Options()
	access := admin.Access{OwnOnly: true, Pattern: d.name, Bucket: d.g.Bucket, Domain: o.Domain, InboxPrefix: d.s.NC.Opts.InboxPrefix}
	if o.Domain == "" && o.APIPrefix != "$JS.API." && o.APIPrefix != "" {
		access.APIPrefix = o.APIPrefix
	}
	of := func(role admin.Role, ownOnly bool) (set admin.PermissionSet) {
		access.Role, access.OwnOnly = role, ownOnly
		set, _ = admin.Permissions(access) // fails for all roles or for none
		return set
	}
	if _, err := admin.Permissions(access); err != nil {
		d.fail("permissions", err, "")
		return
	}
	refused := make(map[string]bool)
	for _, p := range of(admin.RoleUser, false).Publish {
		denied, err := d.tryPublish(p.Subject)
		if err != nil {
			d.fail("permissions", err, "")
			return
		}
		refused[p.Subject] = denied != nil
	}
	d.role = roleOf(of(admin.RoleUser, true).Publish, of(admin.RoleOperator, true).Publish, of(admin.RoleObserver, true).Publish, refused)
	set := of(d.role, true)
	d.subject = set.Subscribe[0].Subject // the mutex's subject
	d.judge(set, of(admin.RoleUser, false).Publish, refused)
	switch d.role {
	case admin.RoleObserver:
		d.leave("mutex", "this user is an observer, which takes no locks")
	case admin.RoleOperator:
		d.leave("queues", "this user is an operator, which does not wait for locks")
	}
}

// roleOf infers the user's role from the writes that are refused. An operator is not allowed to
// write to queues, and an observer is only allowed to read. Anyone else is a user, perhaps
// without all of a user's permissions.
func roleOf(user, operator, observer []admin.Permission, refused map[string]bool) admin.Role {
	allowed := func(all, but []admin.Permission) bool {
		return slices.ContainsFunc(all, func(p admin.Permission) bool {
			return !refused[p.Subject] && !slices.ContainsFunc(but, func(q admin.Permission) bool { return q.Subject == p.Subject })
		})
	}
	switch {
	case allowed(user, operator):
		return admin.RoleUser
	case allowed(operator, observer):
		return admin.RoleOperator
	case slices.ContainsFunc(observer, func(p admin.Permission) bool { return refused[p.Subject] }):
		return admin.RoleUser
	}
	return admin.RoleObserver
}

// judge adds rows for refused permissions that the role needs. all includes reads that a user
// can do without.
func (d *doctor) judge(set admin.PermissionSet, all []admin.Permission, refused map[string]bool) {
	args := "'" + show.Plain(d.Pattern) + "'"
	if d.role != admin.RoleUser {
		args += " --role " + d.role.String()
	}
	repair := "give the user what \"lockctl perms " + args + "\" prints"
	if d.Pattern == ">" {
		repair += "; if it should have only some locks, name them: lockctl doctor 'orders.>'"
	}
	lacks := false
	needed := func(p admin.Permission) bool {
		return slices.ContainsFunc(set.Publish, func(q admin.Permission) bool { return q.Subject == p.Subject })
	}
	for _, p := range all {
		switch {
		case !refused[p.Subject]:
		case needed(p):
			lacks = true
			d.add("permissions", checkError, repair, "refused to %s: publish to %s", p.For, p.Subject)
			d.Checks[len(d.Checks)-1].code = tool.ExitPermission
		case !strings.Contains(p.Subject, "$KV."): // as with --own-only
			d.leave("permissions", "this user may not %s: publish to %s", p.For, p.Subject)
		}
	}
	for _, p := range set.Subscribe {
		denied, err := d.trySubscribe(p.Subject)
		switch {
		case err != nil:
			d.fail("permissions", err, "")
			return
		case denied != nil: // if the inbox had been refused, the run would have ended by now
			lacks = true
			d.add("permissions", checkWarning, repair, "refused to %s: subscribe to %s; waiters poll on timers", p.For, p.Subject)
		}
	}
	if !lacks {
		d.ok("permissions", "all that the role %s needs for locks like %s", d.role, d.name)
	}
}

// tryPublish publishes to subject and returns the server's refusal, or nil if there is none.
func (d *doctor) tryPublish(subject string) (refused, err error) {
	m := nats.NewMsg(strings.ReplaceAll(subject, "*", "doctor"))
	m.Reply = d.s.NC.NewInbox()
	if strings.Contains(subject, ".GET.") && !strings.Contains(subject, "$KV.") {
		m.Data, _ = json.Marshal(map[string]string{"last_by_subj": "$KV." + d.g.Bucket + ".lock." + d.name})
	} else if strings.Contains(subject, "$KV.") && !strings.Contains(subject, ".GET.") {
		// The name was just made up and has no revision 1, so the stream refuses the write.
		m.Header.Set("Nats-Expected-Last-Subject-Sequence", "1")
		m.Header.Set("Nats-TTL", "1s")
		m.Header.Set("KV-Operation", "DEL")
	}
	return d.refusal(func() error { return d.s.NC.PublishMsg(m) })
}

func (d *doctor) trySubscribe(subject string) (refused, err error) {
	var sub *nats.Subscription
	defer func() {
		if sub != nil {
			_ = sub.Unsubscribe()
		}
	}()
	return d.refusal(func() (err error) {
		sub, err = d.s.NC.SubscribeSync(subject)
		return err
	})
}

func (d *doctor) refusal(try func() error) (refused, err error) {
	before := d.s.NC.LastError()
	if err := try(); err != nil {
		return nil, err
	}
	if err := d.s.NC.FlushTimeout(d.g.Timeout); err != nil {
		return nil, err
	}
	if now := d.s.NC.LastError(); now != before && errors.Is(now, nats.ErrPermissionViolation) {
		return now, nil
	}
	return nil, nil
}

// locks takes, renews and releases real locks, and listens for their notifications.
func (d *doctor) locks() {
	err := d.s.Open(d.g, natslock.WithBucketConfig(d.cfg), natslock.WithOwner("lockctl doctor"), natslock.WithTTL(5*time.Second),
		natslock.WithTuning(natslock.Tuning{WatchAfter: -1}), natslock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		d.fail("mutex", err, "see the rows above")
		return
	}
	if d.role != admin.RoleObserver && d.mutex() {
		d.readWrite()
	}
	if d.Repair {
		d.repair()
	}
	d.expiry()
}

// mutex takes, renews and releases a lock. It returns false if the bucket did not store the
// first write and will not store any other.
func (d *doctor) mutex() (stored bool) {
	ctx, cancel := d.g.Bounded()
	defer cancel()
	notified, err := d.s.NC.SubscribeSync(d.subject)
	if err != nil {
		d.fail("watching", err, "")
		return true
	}
	sent := time.Now()
	l, err := d.s.TryLock(ctx, d.name)
	got := time.Now()
	if err != nil {
		return d.refusedWrite("mutex", err)
	}
	info, inspectErr := admin.New(d.s.Client).Inspect(ctx, admin.KindMutex, d.name)
	renewing := time.Now()
	err = l.Extend(ctx, 0)
	releasing := time.Now()
	if err2 := l.Unlock(ctx); err == nil {
		err = err2
	}
	if err != nil {
		d.fail("mutex", err, "see the rows above")
		return true
	}
	d.ok("mutex", "%s taken in %s, renewed in %s, released in %s", d.name, show.Brief(got.Sub(sent)), show.Brief(releasing.Sub(renewing)), show.Brief(time.Since(releasing)))
	if inspectErr != nil || info.Holder == nil {
		d.add("clock", checkUnknown, "", "the record with the server's time was not found")
	} else {
		d.clock("clock", info.Holder.Expires.Add(-info.Holder.TTL), sent, got)
	}
	d.watching(notified)
	return true
}

// watching waits for the notification about the lock that mutex took.
func (d *doctor) watching(notified *nats.Subscription) {
	if d.info.Config.RePublish == nil {
		return // the setting has its own row
	}
	wait := min(d.g.Timeout, wordAfter)
	_, err := notified.NextMsg(wait)
	switch {
	case err != nil:
		d.add("watching", checkWarning, "allow the user to subscribe, and notifications to pass from the bucket's account or domain to this one: waiters poll on timers",
			"no notification within %v of a lock that was taken", wait)
	default:
		d.ok("watching", "a notification of the lock arrived")
	}
}

func (d *doctor) readWrite() {
	ctx, cancel := d.g.Bounded()
	defer cancel()
	rw := rwlock.New(d.s.Client)
	begun := time.Now()
	for _, try := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){rw.TryRLock, rw.TryLock} {
		l, err := try(ctx, d.rwName)
		if err == nil {
			err = l.Unlock(ctx)
		}
		if err != nil {
			d.fail("reader-writer lock", err, "see the rows above")
			return
		}
	}
	d.ok("reader-writer lock", "read and written in %s", show.Brief(time.Since(begun)))
}

// ownTokens is the prefix of the tokens that the doctor makes up. Unless it is given patterns,
// natslock-exporter counts names with this prefix under one label, so that a scheduled doctor
// does not use up the labels.
const ownTokens = "lockctl/doctor"

// ownName returns a name that the pattern matches and that no other client uses. It returns a
// usage error if the pattern has no wildcard.
func ownName(pattern string) (string, error) {
	tokens := strings.Split(pattern, ".")
	own := false
	for i, t := range tokens {
		id := strings.ToLower(rand.Text()[:10])
		switch {
		case t == "*":
			tokens[i], own = ownTokens+"/"+id, true
		case t == ">" && i == len(tokens)-1:
			tokens[i], own = ownTokens+"."+id, true
		}
	}
	if !own {
		return "", tool.Usagef("the pattern %s matches only one name, whose lock doctor must not take: use a pattern that contains a * or ends in .>", show.Plain(pattern))
	}
	return strings.Join(tokens, "."), nil
}
