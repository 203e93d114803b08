//go:build unix

package main

import (
	"context"
	"flag"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

var shots = flag.String("shots", "", "directory for pictures of the page, of TestPageInChromium")

func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// evil serves as a name, an owner and a value. It would run code if a page treated it as markup.
const evil = `<img src=x onerror="document.title='run'">`

// TestPageInChromium checks the page as a browser shows it: locks of all kinds, names that look
// like markup, a lock's own page, sorting and filtering, an outage, and a restart of the exporter.
func TestPageInChromium(t *testing.T) {
	tier.Proof(t)
	b := chromium(t)
	s := testutil.RunServer(t)
	client(t, s) // creates the bucket
	p := follow(t, s)
	page := p.page()
	table := b.open(page, desktop)
	scene(t, s)
	if *shots != "" {
		pictures(t, b, s, page)
	}
	hold(t, named(t, s, evil), evil, natslock.Meta(map[string]string{evil: evil}))
	hold(t, named(t, s, "web-1"), "odd.\xff\n\u202e"+evil)
	hold(t, named(t, s, "web-1"), "\xff\x00")

	table.until(`document.querySelectorAll("#rows tr").length >= 13 && document.getElementById("live").textContent === "live"`)
	table.until(`document.querySelectorAll("#events li").length > 5`)
	require.Equal(t, `"orders.eu.4711"`, table.eval(`document.querySelector("#rows tr a").textContent`), "the longest queue is first")
	require.Contains(t, table.eval(`document.getElementById("rows").innerText`), "<img src=x")
	require.Equal(t, `"Locks"`, table.eval(`document.title`))
	require.Equal(t, "0", table.eval(`document.querySelectorAll("img").length`))
	table.shot("odd-names")
	small := b.open(page, phone)
	small.until(`document.querySelectorAll("#rows tr").length >= 12`)
	require.Equal(t, "true", small.eval(`document.documentElement.scrollWidth <= innerWidth`), "a phone scrolls in one direction")
	small.shot("odd-names-phone")
	small.close()

	// A partition's page links to its group's page, which has no script.
	hold(t, named(t, s, "web-1"), "team.member."+natslock.Join(evil), natslock.Meta(map[string]string{"member": evil, "weight": "1", "partitions": "2"}))
	hold(t, named(t, s, "web-1"), "team.part.0", natslock.Meta(map[string]string{"member": evil}))
	group := b.open(page+"lock?kind=mutex&name=team.part.0", phone)
	group.until(`document.getElementById("group").href !== "" && !document.getElementById("group").hidden`)
	group.eval(`document.getElementById("group").click()`)
	group.until(`document.title === "team – group" && document.body.innerText.includes("unowned: 1")`)
	require.Contains(t, group.eval(`document.body.innerText`), "<img src=x")
	require.Equal(t, "0", group.eval(`document.querySelectorAll("img").length`))
	require.Equal(t, "true", group.eval(`document.documentElement.scrollWidth <= innerWidth`), "a phone scrolls in one direction")
	group.shot("group-phone")
	group.close()

	// Sort with the keyboard, and filter.
	table.eval(`document.querySelector("[data-sort=name] button").focus()`)
	for _, kind := range []string{"keyDown", "keyUp"} {
		table.do("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}, nil)
	}
	table.until(`document.querySelector("[data-sort=name]").getAttribute("aria-sort") === "ascending"`)
	require.Contains(t, table.eval(`document.querySelector("#rows tr a").textContent`), "\\\\xff", "an odd name is first")
	table.do("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": "/", "text": "/"}, nil)
	table.do("Input.insertText", map[string]any{"text": "rw CACHE"}, nil)
	table.until(`document.querySelectorAll("#rows tr").length === 1`)
	require.Contains(t, table.eval(`document.querySelector("#rows tr").innerText`), "cache.index")

	// Follow the link to a lock with an odd name.
	odd := b.open(page+"?q=odd", desktop)
	odd.until(`document.querySelectorAll("#rows tr").length === 1`)
	odd.eval(`document.querySelector("#rows a").click()`)
	odd.until(`document.getElementById("state")?.textContent === "held"`)
	require.Contains(t, odd.eval(`document.getElementById("name").textContent`), "<img src=x")
	require.Contains(t, odd.eval(`document.title`), "lock")
	odd.close()

	// Open pages of locks with and without a history.
	lock := b.open(page+"lock?kind=mutex&name=orders.eu.4711", desktop)
	lock.until(`document.querySelectorAll("#queue tr").length === 4`)
	lock.until(`document.querySelectorAll("#chart rect").length > 3`)
	dark := b.open(page+"lock?kind=rw&name=cache.index", phone)
	dark.until(`document.querySelectorAll("#holders article").length === 4`)
	dark.shot("lock-phone")

	// The server disappears and comes back.
	s.Stop()
	table.until(`document.getElementById("trouble").textContent.includes("lost the connection to nats://")`)
	table.until(`document.getElementById("age").textContent.includes("old")`)
	table.shot("server-gone")
	s.Restart()
	table.until(`document.getElementById("banner").hidden && document.getElementById("live").textContent === "live"`)
	b.quiet()

	// The exporter exits and is started again.
	require.Equal(t, 0, p.stop())
	table.until(`document.getElementById("trouble").textContent.startsWith("The exporter")`)
	table.shot("exporter-gone")
	again := follow(t, s, "--page="+strings.TrimSuffix(strings.TrimPrefix(page, "http://"), "/"))
	table.until(`document.getElementById("banner").hidden && document.getElementById("live").textContent === "live"`)
	table.until(`document.querySelectorAll("#rows tr").length === 1`) // the filter still applies
	require.Equal(t, 0, again.stop())
}

// TestPageWithoutMajority checks that while two of three servers are down, the page says on every
// screen size that nobody gets a lock and since when, and marks what it shows as old.
func TestPageWithoutMajority(t *testing.T) {
	tier.Proof(t)
	b := chromium(t)
	cluster := testutil.RunCluster(t, 3)
	clientOn(t, cluster.ConnectTo(0))
	cluster.WaitStreamLeader(t, "KV_natslock")
	p := launch(t, "--server="+cluster.URLs())
	scene(t, cluster.Servers()[0])
	looks := map[string]look{"1280": desktop, "400": {width: 400, height: 780}}
	before := b.open(p.page(), desktop)
	before.until(`document.getElementById("live").textContent === "live" && document.querySelectorAll("#rows tr").length === 10`)
	cluster.StopServer(1)
	cluster.StopServer(2)
	before.until(`document.getElementById("live").textContent === "no leader"`) // this tab was open all the time
	before.close()
	p.healthz(503, "no leader since ")
	for name, l := range looks {
		for _, path := range []string{"", "lock?kind=mutex&name=orders.eu.4711"} {
			screen := b.open(p.page()+path, l)
			screen.until(`document.getElementById("live").textContent === "no leader"`)
			said := screen.eval(`document.getElementById("banner").innerText`)
			require.Regexp(t, `^"No leader since \d\d:\d\d:\d\d: .*no client can get a lock.*; start the missing servers, and .*run \\"lockctl doctor\\"\. `+
				`The data below is \S+ old, from \d\d:\d\d:\d\d\. Retrying\."$`, said)
			t.Log(said)
			require.Equal(t, "true", screen.eval(`document.documentElement.scrollWidth <= innerWidth`), "it scrolls in one direction")
			require.NotRegexp(t, "No locks are held|not held", screen.eval(`document.body.innerText`))
			screen.until(`document.querySelectorAll("#rows tr, #queue tr").length >= 4`)
			screen.shot("no-leader-" + name + map[bool]string{true: "-lock"}[path != ""])
			screen.close()
		}
	}
	b.quiet()
}

// TestPageWithoutRights checks a lock's page for an exporter that may not read the history.
func TestPageWithoutRights(t *testing.T) {
	tier.Proof(t)
	b := chromium(t)
	s := testutil.RunServer(t, testutil.WithConfigText(permissions(t)))
	c := clientOn(t, s.Connect(natsUser("root")))
	p := follow(t, s, "--user=narrow", "--password=secret", "--names=orders.>")
	hold(t, c, "orders.1")
	hold(t, c, "stock.1")
	table := b.open(p.page(), desktop)
	table.until(`document.querySelectorAll("#rows tr").length === 1 && document.getElementById("names").textContent === "only orders.>"`)
	tab := b.open(p.page()+"lock?kind=mutex&name=orders.1", desktop)
	tab.until(`document.getElementById("note").textContent.includes("HISTORY_natslock")`)
	tab.until(`document.getElementById("remedy").textContent.endsWith("lockctl perms 'orders.>' --role observer --history --bucket natslock")`)
	tab.shot("no-rights")
	b.quiet()
}

// TestPageOfTenThousand displays 10,000 locks in a browser and measures the longest time for which
// the page is unresponsive.
func TestPageOfTenThousand(t *testing.T) {
	tier.Proof(t)
	b := chromium(t)
	s := testutil.RunServer(t)
	holder, _ := client(t, s, natslock.WithTTL(time.Minute), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}), natslock.WithOwner("importer"))
	holdMany(t, holder, 10_000)
	p := follow(t, s)
	tab := b.open(p.page(), desktop)
	tab.until(`document.getElementById("sums").textContent.startsWith("10,000 locks")`)
	ended, end := context.WithCancel(t.Context())
	defer end()
	cycled := cycle(ended, t, s, 250)
	longest := tab.eval(`new Promise((done) => {
		let longest = 0, last = performance.now();
		const step = setInterval(() => { const now = performance.now(); longest = Math.max(longest, now - last); last = now; }, 10);
		const keys = ["name", "holder", "since", "queue"];
		let n = 0;
		const sort = setInterval(() => document.querySelector("[data-sort=" + keys[n++ % 4] + "] button").click(), 300);
		const type = setInterval(() => { const f = document.getElementById("filter"); f.value = n % 2 ? "77" : ""; f.dispatchEvent(new Event("input")); }, 450);
		setTimeout(() => { [step, sort, type].forEach(clearInterval); done(Math.round(longest)); }, 8000);
	})`)
	t.Logf("the page was stuck for %s ms at most, while it was sorted and filtered, beside %d events", longest, 2*cycled())
	tab.shot("ten-thousand")
	var most int
	_, err := fmt.Sscan(longest, &most)
	require.NoError(t, err)
	require.Less(t, most, 1000)
	require.Equal(t, "100", tab.eval(`document.querySelectorAll("#rows tr").length`))
	b.quiet()
}

// pictures saves screenshots of a scene for the documentation, once the scene has some history.
func pictures(t *testing.T, b *browser, s *testutil.Server, page string) {
	t.Helper()
	busy := named(t, s, "worker-3")
	for i := range 45 {
		time.Sleep(time.Second)
		if i%6 == 0 {
			unlock(t, hold(t, busy, fmt.Sprint("orders.us.", 100+i)))
		}
	}
	for name, l := range map[string]look{"table": desktop, "table-dark": night, "table-phone": phone} {
		tab := b.open(page, l)
		tab.until(`document.querySelectorAll("#events li").length > 5 && document.querySelectorAll("#rows tr").length >= 10`)
		tab.shot(name)
		tab.close()
	}
	tab := b.open(page+"lock?kind=mutex&name=orders.eu.4711", desktop)
	tab.until(`document.querySelectorAll("#chart rect").length > 3`)
	tab.shot("lock")
	tab.close()
	tab = b.open(page+"lock?kind=mutex&name=orders.eu.4711", look{width: 1280, height: 1400, dark: true})
	tab.until(`document.querySelectorAll("#chart rect").length > 3`)
	tab.shot("lock-dark")
	tab.close()
}

func named(t *testing.T, s *testutil.Server, owner string) *natslock.Client {
	t.Helper()
	c, _ := client(t, s, natslock.WithOwner(owner))
	return c
}

// scene sets up locks of all kinds, some with a queue and one broken.
func scene(t *testing.T, s *testutil.Server) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		require.NoError(t, err)
	}
	web, worker, ops := named(t, s, "web-1"), named(t, s, "worker-7"), named(t, s, "ops")
	ctx := context.WithoutCancel(t.Context())

	for i := range 6 {
		l := hold(t, worker, "orders.eu.4711", natslock.TTL(20*time.Second))
		time.Sleep(time.Duration(60+30*i) * time.Millisecond) // visible in the timeline
		unlock(t, l)
	}
	hold(t, web, "orders.eu.4711", natslock.Meta(map[string]string{"request": "b7f3-22", "reason": "settle the invoice"}))
	for i := range 4 {
		later(t, named(t, s, fmt.Sprintf("worker-%d", i+1)), "orders.eu.4711")
	}
	for _, name := range []string{"orders.eu.4712", "orders.us.98", "tenants.acme.migrate", "reports.daily", "deploy.shop", "mail.digest"} {
		hold(t, map[bool]*natslock.Client{true: web, false: worker}[strings.HasPrefix(name, "o")], name)
	}
	later(t, named(t, s, "web-2"), "reports.daily")

	broken := hold(t, worker, "backup.nightly", natslock.TTL(time.Hour))
	must(admin.New(ops).Break(ctx, admin.BreakRequest{Name: "backup.nightly", ID: broken.ID(), Reason: "hangs since the upgrade"}))
	for i := range 3 {
		l, err := rwlock.New(named(t, s, fmt.Sprintf("search-%d", i+1))).RLock(ctx, "cache.index")
		must(err)
		t.Cleanup(func() { runtime.KeepAlive(l) })
	}
	go func() { _, _ = rwlock.New(worker).Lock(ctx, "cache.index", natslock.MaxWait(patience)) }()
	for i := range 3 {
		l, err := semaphore.New(named(t, s, fmt.Sprintf("encoder-%d", i+1)), 4).Acquire(ctx, "gpu")
		must(err)
		t.Cleanup(func() { runtime.KeepAlive(l) })
	}
}
