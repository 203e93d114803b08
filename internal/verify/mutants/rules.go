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
	{"a guard names a literal subject, without a prefix", []string{"guard", "guard-literal"}},
	{"TTLs are rounded up", []string{"ttl-rounded-up"}},
	{"nothing is granted in a bucket that is known to be unfit", []string{"unfit-refused", "unfit-grants-none"}},
	{"an answer that shows different settings makes the client verify the bucket", []string{"replicas-noticed", "lag-noticed", "taking-verified"}},
	{"unsafe buckets, servers and protocols are refused", []string{"unfit", "server-level", "protocol"}},
	{"a read states the revision that it reflects", []string{"read-as-of", "nothing-proven"}},
	{"only a leader proves that a record is absent", []string{"state-as-of", "state-complete", "state-term", "leader-complete", "break-complete", "view-named"}},
	{"a view is not ahead of the leader", []string{"view-reached"}},
	{"an unreadable record has an unknown holder", []string{"unknown-owner", "record-judged"}},
	{"the validity begins when the write is sent, and ends a margin before the lease", []string{"margin", "from-sending"}},
	{"a late acknowledgment grants nothing", []string{"late-answer"}},
	{"a late renewal revives nothing", []string{"late-renewal"}},
	{"the validity of a record that a read finds begins when that record's write was sent", []string{"own-sending", "found-sending"}},
	{"a claim that is over is never granted", []string{"over-answered", "over-closed"}},
	{"a client never adopts its own broken record", []string{"broken-not-adopted", "found-broken"}},
	{"after a refused renewal, the client rereads the record", []string{"renewal-refused"}},
	{"a blocked network does not delay the end of a lease", []string{"due-at-end"}},
	{"the context ends before the record does, and before another client can adopt it", []string{"context-first", "leave-context-first"}},
	{"a `Close` waits for the tombstone of a lease that has ended", []string{"leave-awaited"}},
	{"a `Close` waits for the answer to a reader's claim that is over", []string{"guarded-awaited"}},
	{"a release never deletes the next holder's record", []string{"release-own"}},
	{"tokens rise", []string{"tokens-forward", "token-revision", "token-full"}},
	{"a goroutine that is let into a lease has at least a third of the validity left", []string{"admitted-inside", "admitted-early"}},
	{"an overdue record is deleted only at its exact revision, and overdue by a server's clock", []string{"overdue", "overdue-asked"}},
	{"a notification alone never causes a claim or a deletion", []string{"release-verified", "notification-verified"}},
	{"the first waiter claims at the revision of a tombstone, never of a live record", []string{"vacant-read"}},
	{"a list of the queue must contain the waiter's own ticket", []string{"queue-as-of", "first-by-leader"}},
	{"its predecessor's tombstone makes a waiter first only if no other waiter can be between them", []string{"shortcut-sure", "no-shortcut", "recalled-missing", "part-begins", "part-gapless", "next-behind", "foremost-alone", "served-before"}},
	{"a lock is taken out of turn only after reads that cannot have missed anything", []string{"idle-lock", "window-gap", "window-unchanged", "window-head", "window-anew"}},
	{"a client deletes only the place of the head, after its own grant, at the revision it read", []string{"evicted-granted", "evicted-as-read", "evicted-entitled"}},
	{"a client bypasses the queue for at most 100 ms", []string{"bypass-bounded", "bypass-repeated"}},
	{"a subscription is proven by a refused write", []string{"probe-refused"}},
	{"a reader joins only while there is no gate", []string{"join-guarded", "join-new-id"}},
	{"a drain needs two answers with a gate write between them", []string{"two-answers", "gate-written-between", "proof-in-time"}},
	{"only a reader's own tombstone proves that the reader has left", []string{"reader-gone", "reader-deleted"}},
	{"a broken readers' record lasts until the last reader has stopped", []string{"last-leaves", "last-again"}},
	{"readers and writers wait only for the places that the queue rule names", []string{"queue-rule"}},
	{"a newcomer to a semaphore queues behind every waiter, regardless of the number of slots that the waiter assumes", []string{"newcomer-queues", "slot-bypass-empty"}},
	{"the claim for one slot ends before a claim for another begins", []string{"slot-claim-closed"}},
	{"a slot is claimed only at a revision that a read has shown to be free", []string{"newcomer-held"}},
	{"an idle lease is used only within 5 s of a list of the queue", []string{"linger-informed", "recall-closes"}},
	{"a hand-over is confirmed within the validity", []string{"handoff-in-time"}},
	{"only the fixed record that the handle names is adopted", []string{"handle-own", "handle-fixed", "adopt-never-free"}},
	{"a lock that no process renews is extended only within its validity, by its handle, and never to an earlier end", []string{"handle-late", "extend-in-time", "extend-never-shorter"}},
	{"a break affects only the claim that its request names", []string{"break-shown"}},
	{"a broken record lives as long as the lease that it ends", []string{"broken-outlasts", "broken-age"}},
	{"a re-created bucket ends every lease", []string{"re-created", "bucket-gone"}},
	{"a leader whose lock was broken no longer leads", []string{"leader-deposed"}},
	{"every client takes several locks in the same order", []string{"all-in-order"}},
	{"a finished job stays finished, and only a run that held its lock to the end finishes it", []string{"once-kept", "once-held", "once-alone"}},
	{"every fenced write carries the guard, and a smaller token never replaces a greater one", []string{"fence-guard", "fence-greater"}},
}

const (
	rulesBegin = `<!-- Written by "make docs". -->

# The rules and the lines that enforce them

A comment like ` + "`//safety:late-answer`" + ` marks a line that enforces a rule. A mutant in
` + "`internal/verify/mutants`" + ` weakens the line with that label, and ` + "`make mutants-all`" + ` requires that
each test in the last column then fails an assertion. [The ledger](ledger.md#lines-without-a-mutant) lists the lines
that enforce a rule but have no mutant, with the reasons.

## Rules of the protocol

| rule | label | where | test |
|---|---|---|---|
`
	rulesRest = `
## Other lines

These lines enforce part of a rule, or keep a promise to users. The third column says what the library
does without the line.

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
