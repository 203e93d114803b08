package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"
)

// write is one of the program's conditional writes as it passed through the wire. The fields above the blank line
// never change.
type write struct {
	n      int    // its number among the writes under its key, from 1
	key    string // without the bucket's prefix
	reply  string
	header nats.Header
	data   []byte
	fields map[string]any // the record's fields; nil if the data is not a map
	at     time.Time      // when it reached the wire, which is later than when the program sent it

	stored   uint64 // its revision, once the server has acknowledged it
	answered bool   // the program has received the server's answer
}

func (w *write) deletes() bool         { return w.header.Get("KV-Operation") != "" }
func (w *write) renewal() bool         { return number(w.fields["r"]) > 0 }
func (w *write) expect() string        { return w.header.Get("Nats-Expected-Last-Subject-Sequence") }
func (w *write) expects(r uint64) bool { return w.expect() == strconv.FormatUint(r, 10) }

func (w *write) String() string {
	what := "record"
	switch {
	case w.deletes():
		what = "tombstone"
	case w.renewal():
		what = "renewal"
	}
	unreadable := ""
	if !w.deletes() {
		unreadable = unreadablePart(w.fields)
	}
	return fmt.Sprintf("%s of %s that expects %q with TTL %q%s", what, w.key, w.expect(), w.header.Get("Nats-TTL"), unreadable)
}

// fate is what the wire does to a write and its answer. The zero fate lets both pass.
type fate struct {
	hold   <-chan struct{} // pass the write only once this is closed
	drop   bool            // never pass the write
	forged string          // the answer to a dropped write; if it begins with NATS/1.0, it consists of headers
	after  time.Duration   // pass the answer this long after the write
	until  <-chan struct{} // pass the answer only once this is closed
	lose   bool            // never pass the answer
	repeat int             // pass the answer this many additional times
}

// wire sits between the program and the server. It speaks the NATS protocol, and records the program's writes.
type wire struct {
	listener net.Listener
	target   string
	prefix   string // the prefix of record subjects
	wg       sync.WaitGroup
	over     chan struct{}

	mu      sync.Mutex
	closed  bool
	conns   map[net.Conn]struct{}
	rule    func(w *write) fate       // nil passes all writes
	hears   func(subject string) bool // whether to pass a notification; nil passes all
	reads   <-chan struct{}           // holds reads until it is closed; nil holds none
	asking  <-chan struct{}           // the same for stream infos
	asked   int                       // how many stream infos were requested
	info    func(i map[string]any)    // changes the stream infos that the program sees; nil changes nothing
	refuses bool                      // refuse new connections
	infos   map[string]bool           // reply subjects of stream info requests
	shown   int                       // how many stream infos have passed
	writes  []*write
	waiting map[string]*waiting // writes waiting for an answer, by reply subject

	stream, other string // direct gets from stream are answered by other
	replica       bool   // other answers under the name of stream
}

// waiting is a write whose answer has not arrived.
type waiting struct {
	*write
	fate
}

func newWire(url, bucket string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{
		listener: l, target: url[strings.LastIndexAny(url, "/@")+1:], prefix: "$KV." + bucket + ".",
		over: make(chan struct{}), conns: map[net.Conn]struct{}{}, infos: map[string]bool{}, waiting: map[string]*waiting{},
	}
	w.wg.Go(w.accept)
	return w, nil
}

func (w *wire) address() string { return w.listener.Addr().String() }

// govern sets the rule for future writes.
func (w *wire) govern(rule func(w *write) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rule = rule
}

// blind holds all reads until sees is called. Their answers arrive after that.
func (w *wire) blind() (sees func()) {
	gate := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads = gate
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.reads = nil
		close(gate)
	}
}

// holdInfos holds all requests for a stream info until pass is called. held reports whether there has been such a
// request.
func (w *wire) holdInfos() (held func() bool, pass func()) {
	gate := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asking = gate
	before := w.asked
	held = func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.asked > before
	}
	return held, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asking = nil
		close(gate)
	}
}

// show makes the program see changed stream infos.
func (w *wire) show(change func(i map[string]any)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info = change
}

// lag makes another stream, whose name must have the same length, answer the direct gets from a stream. The other
// stream answers under its own name or, if replica is true, under the original stream's name as a lagging replica
// would.
func (w *wire) lag(stream, other string, replica bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream, w.other, w.replica = stream, other, replica
}

// cut closes the program's connections, and refuses new ones until back is called.
func (w *wire) cut() (back func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuses = true
	for c := range w.conns {
		_ = c.Close()
	}
	clear(w.conns)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.refuses = false
	}
}

// infosShown returns how many stream infos the program has received.
func (w *wire) infosShown() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown
}

// deafen stops all notifications.
func (w *wire) deafen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hears = func(string) bool { return false }
}

// seen returns copies of the writes so far, either under one key or, if key is "", under all keys.
func (w *wire) seen(key string) (all []write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.writes {
		if key == "" || one.key == key {
			all = append(all, *one)
		}
	}
	return all
}

func (w *wire) close() {
	w.mu.Lock()
	w.closed = true
	for c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	_ = w.listener.Close()
	close(w.over)
	w.wg.Wait()
}

func (w *wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		refuses := w.refuses
		w.mu.Unlock()
		if refuses {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", w.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.mu.Lock()
		w.conns[client], w.conns[server] = struct{}{}, struct{}{}
		closed, refuses := w.closed, w.refuses
		w.mu.Unlock()
		if closed || refuses {
			_, _ = client.Close(), server.Close()
			continue
		}
		toClient, toServer := &sink{w: client}, &sink{w: server}
		end := func() { _, _ = client.Close(), server.Close() }
		w.wg.Go(func() { defer end(); w.pump(bufio.NewReader(client), toServer, w.fromClient(toClient)) })
		w.wg.Go(func() { defer end(); w.pump(bufio.NewReader(server), toClient, w.fromServer) })
	}
}

// sink is a connection to which several goroutines write frames.
type sink struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sink) put(frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.w.Write(frame) // the reader of this connection notices errors
}

// frame is a line of the NATS protocol, together with the message that follows it.
type frame struct {
	words   [][]byte
	raw     []byte
	message []byte // headers and body, for PUB, HPUB, MSG and HMSG
	header  int    // the length of the headers in message
}

func (f frame) subject() string { return string(f.words[1]) }

// reply returns a published message's reply subject.
func (f frame) reply() string {
	sizes := 1
	if f.header > 0 {
		sizes = 2
	}
	if len(f.words) != 3+sizes {
		return ""
	}
	return string(f.words[2])
}

// pump passes on all frames except those that take handles.
func (w *wire) pump(from *bufio.Reader, to *sink, take func(f frame, to *sink) bool) {
	for {
		f, err := read(from)
		if err != nil {
			return
		}
		if !take(f, to) {
			to.put(f.raw)
		}
	}
}

func read(from *bufio.Reader) (f frame, err error) {
	f.raw, err = from.ReadBytes('\n')
	if err != nil {
		return f, err
	}
	f.words = bytes.Fields(f.raw)
	if len(f.words) < 3 {
		return f, nil
	}
	verb := string(bytes.ToUpper(f.words[0]))
	switch verb {
	case "PUB", "HPUB", "MSG", "HMSG":
	default:
		return f, nil
	}
	size, err := strconv.ParseUint(string(f.words[len(f.words)-1]), 10, 31)
	if err != nil {
		return f, err
	}
	if verb[0] == 'H' {
		if f.header, err = strconv.Atoi(string(f.words[len(f.words)-2])); err != nil || f.header < 0 || f.header > int(size) {
			return f, fmt.Errorf("%q: no length of headers", f.raw)
		}
	}
	head := len(f.raw)
	var rest bytes.Buffer
	if _, err := io.CopyN(&rest, from, int64(size)+2); err != nil {
		return f, err
	}
	f.raw = append(f.raw, rest.Bytes()...)
	f.message = f.raw[head : head+int(size)]
	return f, nil
}

// subscriptions are those of a single connection.
type subscriptions []struct{ pattern, sid string }

func (s *subscriptions) note(f frame) {
	if n := len(f.words); n >= 3 && bytes.EqualFold(f.words[0], []byte("SUB")) {
		*s = append(*s, struct{ pattern, sid string }{string(f.words[1]), string(f.words[n-1])})
	}
}

// of returns the id of the last subscription that matches a subject.
func (s subscriptions) of(subject string) string {
	tokens := strings.Split(subject, ".")
	for _, one := range slices.Backward(s) {
		pattern := strings.Split(one.pattern, ".")
		rest := pattern[len(pattern)-1] == ">"
		if len(pattern) > len(tokens) || len(pattern) < len(tokens) && !rest {
			continue
		}
		matches := true
		for i, p := range pattern {
			matches = matches && (p == "*" || p == tokens[i] || p == ">" && i == len(pattern)-1)
		}
		if matches {
			return one.sid
		}
	}
	return "0"
}

// fromClient handles the program's writes.
func (w *wire) fromClient(client *sink) func(f frame, server *sink) bool {
	var inboxes subscriptions
	return func(f frame, server *sink) bool {
		if f.message == nil {
			inboxes.note(f)
			return false
		}
		key, ok := strings.CutPrefix(f.subject(), w.prefix)
		if !ok {
			return w.asks(f, server)
		}
		one := &write{key: key, header: nats.Header{}, data: f.message[f.header:], at: time.Now()}
		if f.header > 0 {
			if h, err := nats.DecodeHeadersMsg(f.message[:f.header]); err == nil {
				one.header = h
			}
		}
		one.reply = f.reply()
		one.fields = decode(one.data)
		w.mu.Lock()
		defer w.mu.Unlock()
		one.n = 1
		for _, other := range w.writes {
			if other.key == key {
				one.n++
			}
		}
		w.writes = append(w.writes, one)
		var do fate
		if w.rule != nil {
			do = w.rule(one)
		}
		w.waiting[one.reply] = &waiting{one, do}
		switch {
		case do.drop:
			if do.forged != "" {
				delete(w.waiting, one.reply)
				verb, sizes := "MSG", strconv.Itoa(len(do.forged))
				if strings.HasPrefix(do.forged, "NATS/1.0") {
					verb, sizes = "HMSG", sizes+" "+sizes
				}
				client.put(fmt.Appendf(nil, "%s %s %s %s\r\n%s\r\n", verb, one.reply, inboxes.of(one.reply), sizes, do.forged))
			}
			return true
		case do.hold != nil:
			w.wg.Go(func() {
				if w.opened(do.hold) {
					server.put(f.raw)
				}
			})
			return true
		}
		return false
	}
}

// asks handles the program's requests other than writes.
func (w *wire) asks(f frame, server *sink) bool {
	request, ok := strings.CutPrefix(f.subject(), "$JS.API.")
	if !ok {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var gate <-chan struct{}
	if reply := f.reply(); reply != "" && strings.HasPrefix(request, "STREAM.INFO.") {
		w.infos[reply] = true
		w.asked++
		gate = w.asking
	}
	if w.other != "" && strings.HasPrefix(request, "DIRECT.GET."+w.stream) {
		server.put(bytes.Replace(f.raw, []byte("DIRECT.GET."+w.stream), []byte("DIRECT.GET."+w.other), 1))
		return true
	}
	if strings.HasPrefix(request, "DIRECT.GET.") || strings.HasPrefix(request, "STREAM.MSG.GET.") {
		gate = w.reads
	}
	if gate != nil {
		w.wg.Go(func() {
			if w.opened(gate) {
				server.put(f.raw)
			}
		})
		return true
	}
	return false
}

// opened waits until gate is open. It returns false if the wire is closed first.
func (w *wire) opened(gate <-chan struct{}) bool {
	select {
	case <-gate:
		return true
	case <-w.over:
		return false
	}
}

// fromServer handles notifications and the answers to writes.
func (w *wire) fromServer(f frame, client *sink) bool {
	if f.message == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.infos[f.subject()] {
		delete(w.infos, f.subject())
		w.shown++
		return w.alters(f, client)
	}
	one := w.waiting[f.subject()]
	if one == nil && w.replica && f.header > 0 {
		client.put(bytes.Replace(f.raw, []byte("Nats-Stream: "+w.other), []byte("Nats-Stream: "+w.stream), 1))
		return true
	}
	if one == nil {
		return w.hears != nil && strings.HasPrefix(f.subject(), "natslock.") && !w.hears(f.subject())
	}
	delete(w.waiting, f.subject())
	var ack struct {
		Seq   uint64
		Error *struct{}
	}
	if json.Unmarshal(f.message[f.header:], &ack) == nil && ack.Error == nil && !one.drop {
		one.stored = ack.Seq
	}
	pass := func() {
		w.mu.Lock()
		one.answered = true
		w.mu.Unlock()
		for range 1 + one.repeat {
			client.put(f.raw)
		}
	}
	switch {
	case one.lose:
	case one.until != nil:
		w.wg.Go(func() {
			if w.opened(one.until) {
				pass()
			}
		})
	case one.after > 0:
		due := time.NewTimer(time.Until(one.at.Add(one.after)))
		w.wg.Go(func() {
			defer due.Stop()
			select {
			case <-due.C:
				pass()
			case <-w.over:
			}
		})
	default:
		one.answered = true
		for range 1 + one.repeat {
			client.put(f.raw)
		}
	}
	return true
}

// alters changes a stream info and passes it on.
func (w *wire) alters(f frame, client *sink) bool {
	if w.info == nil || f.header > 0 {
		return false
	}
	var info map[string]any
	d := json.NewDecoder(bytes.NewReader(f.message))
	d.UseNumber()
	if d.Decode(&info) != nil {
		return false
	}
	w.info(info)
	data, err := json.Marshal(info)
	if err != nil {
		return false
	}
	head := bytes.Join(f.words[:len(f.words)-1], []byte(" "))
	client.put(fmt.Appendf(nil, "%s %d\r\n%s\r\n", head, len(data), data))
	return true
}

// decode returns a record's fields, or nil if data is not a record.
func decode(data []byte) map[string]any {
	d := msgpack.NewDecoder(bytes.NewReader(data))
	n, err := d.DecodeMapLen()
	if err != nil || n < 0 || n > len(data) { // allocate nothing for announced but missing fields
		return nil
	}
	fields := map[string]any{}
	for range n {
		name, err := d.DecodeString()
		if err != nil {
			return nil
		}
		if fields[name], err = d.DecodeInterfaceLoose(); err != nil {
			return nil
		}
	}
	return fields
}

// kinds lists the fields of each type. Any other field may have any value.
var kinds = map[string]string{
	"an integer": " v s a r t l m q at w n e g gw u by p ps ba ", "a string": " id c o h bb br ", "a bool": " f k ", "a map": " d ",
}

// unreadableBy returns which field of a record has a value of the wrong type, or "".
func unreadableBy(fields map[string]any) string {
	if fields == nil {
		return "it is not such a map"
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		kind := "some other value"
		switch fields[name].(type) {
		case nil:
			continue // the same as an absent field
		case int64, uint64:
			kind = "an integer"
		case float32, float64:
			kind = "a float"
		case string, []byte:
			kind = "a string"
		case bool:
			kind = "a bool"
		case map[string]any:
			kind = "a map"
		}
		for want, names := range kinds {
			if strings.Contains(names, " "+name+" ") && kind != want {
				return name + " is " + kind
			}
		}
	}
	return ""
}

// unreadablePart is like unreadableBy, but words its result as part of a sentence.
func unreadablePart(fields map[string]any) string {
	if by := unreadableBy(fields); by != "" {
		return ", unreadable: " + by
	}
	return ""
}

func number(v any) uint64 {
	switch n := v.(type) {
	case int64:
		return uint64(max(n, 0))
	case uint64:
		return n
	}
	return 0
}

func text(v any) string {
	s, _ := v.(string)
	return s
}
