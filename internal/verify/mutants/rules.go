package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:generate go run . -rules

// rulesPage is the page that lists the rules, relative to the module's root. It is generated
// from the labels in the code, from the mutants, and from the table named rules.
const rulesPage = "docs/evidence/rules.md"

// rule is a rule of the protocol, together with the labels of the lines that enforce it.
type rule struct {
	text   string
	labels []string
}

// rules lists the rules named in the argument for safety and for the order of the queue. The
// page lists all other labels after them, so a new label needs no rule here.
var rules = []rule{
	{"every write is conditional and expires", []string{"conditional", "record-ends"}},
	{"a guard is literal, and without a prefix", []string{"guard", "guard-literal"}},
	{"TTLs are rounded up", []string{"ttl-rounded-up"}},
	{"nothing is granted in a bucket that is known to be unfit", []string{"unfit-refused", "unfit-grants-none"}},
	{"an answer with other settings has the bucket verified", []string{"replicas-noticed", "lag-noticed", "taking-verified"}},
	{"unsafe buckets, servers and protocols are refused", []string{"unfit", "server-level", "protocol"}},
	{"a read is as of a revision", []string{"read-as-of", "nothing-proven"}},
	{"absence is proven by a leader only", []string{"state-as-of", "state-complete", "state-term", "leader-complete", "break-complete", "view-named"}},
	{"a view is not ahead of the leader", []string{"view-reached"}},
	{"an unreadable record has an unknown holder", []string{"unknown-owner", "record-judged"}},
	{"validity counts from the sending, and stops a margin short", []string{"margin", "from-sending"}},
	{"a late acknowledgment grants nothing", []string{"late-answer"}},
	{"a late renewal revives nothing", []string{"late-renewal"}},
	{"a found record counts from its own sending", []string{"own-sending", "found-sending"}},
	{"a claim that is over is never granted", []string{"over-answered", "over-closed"}},
	{"a client never adopts its own broken record", []string{"broken-not-adopted", "found-broken"}},
	{"after a refused renewal the client reads the record again", []string{"renewal-refused"}},
	{"the network does not hold up the end", []string{"due-at-end"}},
	{"the context ends before the record does, and before another client can adopt it", []string{"context-first", "leave-context-first"}},
	{"a `Close` waits for the tombstone of a lease that has ended", []string{"leave-awaited"}},
	{"a `Close` waits for the answer to a reader's claim that is over", []string{"guarded-awaited"}},
	{"the next holder's record stays", []string{"release-own"}},
	{"tokens rise", []string{"tokens-forward", "token-revision", "token-full"}},
	{"a goroutine that is let into a lease has a third of the validity left", []string{"admitted-inside", "admitted-early"}},
	{"an overdue record is deleted at exactly its revision, by a server's clock", []string{"overdue", "overdue-asked"}},
	{"nothing is claimed or deleted on the word of a notification", []string{"release-verified", "notification-verified"}},
	{"the first waiter claims at the revision of a tombstone, never of a live record", []string{"vacant-read"}},
	{"a queue is listed as of the own ticket", []string{"queue-as-of", "first-by-leader"}},
	{"a waiter is first by its predecessor's tombstone only if nobody can be between", []string{"shortcut-sure", "no-shortcut", "recalled-missing", "part-begins", "part-gapless", "next-behind", "foremost-alone", "served-before"}},
	{"a lock is taken out of turn after reads that leave nothing unseen", []string{"idle-lock", "window-gap", "window-unchanged", "window-head", "window-anew"}},
	{"a place is deleted after an own grant, at the revision read, and only the head's", []string{"evicted-granted", "evicted-as-read", "evicted-entitled"}},
	{"a client passes the queue for 100 ms at most", []string{"bypass-bounded", "bypass-repeated"}},
	{"a subscription is proven by a refused write", []string{"probe-refused"}},
	{"a reader joins only while no gate stands", []string{"join-guarded", "join-new-id"}},
	{"a drain takes two answers around a gate write", []string{"two-answers", "gate-written-between", "proof-in-time"}},
	{"a reader is gone by its own tombstone only", []string{"reader-gone", "reader-deleted"}},
	{"a broken readers' record lasts until the last reader has stopped", []string{"last-leaves", "last-again"}},
	{"the queue rule of readers", []string{"queue-rule"}},
	{"a newcomer to a semaphore queues behind any waiter, whatever slots that knows of", []string{"newcomer-queues", "slot-bypass-empty"}},
	{"a claim of one slot is over before that of another begins", []string{"slot-claim-closed"}},
	{"a slot is claimed at a revision that was read and holds nobody", []string{"newcomer-held"}},
	{"an idle lease is used only while a list of 5 s counts", []string{"linger-informed", "recall-closes"}},
	{"a hand-over is confirmed inside the validity", []string{"handoff-in-time"}},
	{"only the fixed record that the handle names is adopted", []string{"handle-own", "handle-fixed", "adopt-never-free"}},
	{"a lock that no process renews is extended inside its validity, by its handle, and for no less than it had", []string{"handle-late", "extend-in-time", "extend-never-shorter"}},
	{"a break meets only the claim that its request names", []string{"break-shown"}},
	{"a broken record lives as long as the lease that it ends", []string{"broken-outlasts", "broken-age"}},
	{"a re-created bucket ends every lease", []string{"re-created", "bucket-gone"}},
	{"a leader that was broken leads no more", []string{"leader-deposed"}},
	{"several locks are taken in one order", []string{"all-in-order"}},
	{"a job that is done stays so, and only a run that held its lock makes it so", []string{"once-kept", "once-held", "once-alone"}},
	{"each fenced write has the guard, and a greater token is never replaced", []string{"fence-guard", "fence-greater"}},
}

const (
	rulesBegin = `<!-- Written by "make docs". -->

# The rules and the lines that keep them

A comment like ` + "`//safety:late-answer`" + ` labels a line that carries a rule. A mutant in
` + "`internal/verify/mutants`" + ` names the label and weakens the line, and ` + "`make mutants-all`" + ` requires that
each test of the last column fails by an assertion. [The ledger](ledger.md#lines-without-a-mutant) lists the lines
that carry a rule and have no mutant, and says why.

## Rules of the protocol

| rule | label | where | test |
|---|---|---|---|
`
	rulesRest = `
## Other lines

These lines keep a part of a rule, or a promise to users. The column in the middle says what the
library does without the line.

`
)

// page returns the rules page, with one row for each label in the code.
func page(root string, places map[string]place) (string, error) {
	of := map[string][]mutant{}
	for _, m := range mutants {
		of[m.label] = append(of[m.label], m)
	}
	functions := map[string]string{}
	for label, at := range places {
		where, err := function(root, at)
		if err != nil {
			return "", err
		}
		functions[label] = fmt.Sprintf("[`%s`](../../%s)", where, at.file)
	}
	var b strings.Builder
	b.WriteString(rulesBegin)
	listed := map[string]bool{}
	for _, r := range rules {
		var labels, where, tests []string
		for _, label := range r.labels {
			if _, exists := places[label]; !exists {
				return "", fmt.Errorf("rule %q: no line has the label %s", r.text, label)
			}
			if listed[label] {
				return "", fmt.Errorf("rule %q: another rule has the label %s", r.text, label)
			}
			listed[label] = true
			labels = append(labels, "`safety:"+label+"`")
			where = append(where, functions[label])
			tests = append(tests, testsOf(of[label], places)...)
		}
		row(&b, r.text, distinct(labels), distinct(where), distinct(tests))
	}
	b.WriteString(rulesRest)
	b.WriteString("| label | where | without it | test |\n|---|---|---|---|\n")
	rest := slices.SortedFunc(maps.Keys(places), func(x, y string) int {
		return cmp.Or(cmp.Compare(places[x].file, places[y].file), cmp.Compare(places[x].line, places[y].line))
	})
	for _, label := range rest {
		if listed[label] {
			continue
		}
		var weak []string
		for _, m := range of[label] {
			weak = append(weak, m.weak)
		}
		row(&b, "`safety:"+label+"`", functions[label], strings.Join(weak, "; "), distinct(testsOf(of[label], places)))
	}
	return b.String(), nil
}

func row(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		fmt.Fprintf(b, "| %s ", strings.ReplaceAll(c, "|", `\|`))
	}
	b.WriteString("|\n")
}

// distinct joins the distinct texts in order.
func distinct(texts []string) string {
	var once []string
	for _, t := range texts {
		if !slices.Contains(once, t) {
			once = append(once, t)
		}
	}
	return strings.Join(once, ", ")
}

// testsOf returns the names of the mutants' tests, formatted as in documents.
func testsOf(of []mutant, places map[string]place) (names []string) {
	for _, m := range of {
		for _, n := range m.tests(places) {
			names = append(names, fmt.Sprintf("`%s: %s`", n.dir, n.test))
		}
	}
	return names
}

// function returns the name of the function around a label, including its package and type. If
// the label is outside any function, it returns the name of the constant, variable or type.
func function(root string, at place) (string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, filepath.Join(root, at.file), nil, parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	name := enclosing(fset, file, at.line)
	if name == "" {
		return "", fmt.Errorf("%s:%d: the label is in no declaration", at.file, at.line)
	}
	return file.Name.Name + "." + name, nil
}

// enclosing returns the name of the declaration around a line, or "" if there is none.
func enclosing(fset *token.FileSet, file *ast.File, line int) string {
	around := func(n ast.Node) bool {
		return fset.Position(n.Pos()).Line <= line && line <= fset.Position(n.End()).Line
	}
	for _, d := range file.Decls {
		if !around(d) {
			continue
		}
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				return d.Name.Name
			}
			t := d.Recv.List[0].Type
			if star, ok := t.(*ast.StarExpr); ok {
				t = star.X
			}
			if index, ok := t.(*ast.IndexExpr); ok {
				t = index.X
			}
			if id, ok := t.(*ast.Ident); ok {
				return id.Name + "." + d.Name.Name
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if !around(s) {
					continue
				}
				switch s := s.(type) {
				case *ast.ValueSpec:
					return s.Names[0].Name
				case *ast.TypeSpec:
					return s.Name.Name
				}
			}
		}
	}
	return ""
}

// writeRules writes the rules page.
func writeRules(root string) error {
	places, err := labels(root)
	if err != nil {
		return err
	}
	text, err := page(root, places)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, rulesPage), []byte(text), 0o644)
}
