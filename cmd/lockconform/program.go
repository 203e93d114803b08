package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// request is a line sent to the program. Zero fields are omitted.
type request struct {
	ID     int    `json:"id"`
	Do     string `json:"do"`
	URL    string `json:"url,omitempty"`
	Bucket string `json:"bucket,omitempty"`
	TTL    int64  `json:"ttl,omitempty"`   // in milliseconds; open sets it for all locks, and extend for one
	Level  int    `json:"level,omitempty"` // the highest level tested
	Name   string `json:"name,omitempty"`  // the lock's name
	Wait   int64  `json:"wait,omitempty"`  // in milliseconds
	// Kind is "read", "write" or "permit" (one of Permits). If it is empty, the lock is a
	// mutex.
	Kind    string `json:"kind,omitempty"`
	Permits int    `json:"permits,omitempty"`
}

// answer is a line from the program: the result of a request, or an event.
type answer struct {
	ID     int    `json:"id"`
	Result string `json:"result"`
	Token  uint64 `json:"token"`
	Held   bool   `json:"held"`
	Left   int64  `json:"left"`   // the remaining milliseconds
	Margin int64  `json:"margin"` // in the answer to open, in milliseconds; 0 for a tenth of the TTL, but at most 1 s
	Why    string `json:"why"`
	Event  string `json:"event"`
	Name   string `json:"name"`
}

func (a answer) String() string {
	if a.Why != "" {
		return fmt.Sprintf("%q (%s)", a.Result, a.Why)
	}
	return fmt.Sprintf("%q", a.Result)
}

// program is a run of the locker under test.
type program struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	stderr tail
	ended  chan struct{} // closed at the end of its output

	mu      sync.Mutex
	last    int // the last request id
	answers map[int]chan answer
	lost    map[string]int // the number of lost events, by the lock's name
	noise   string         // output that is neither an answer nor an event
}

// tail keeps the end of the text written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - 500; over > 0 {
		t.text = slices.Delete(t.text, 0, over)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

func startProgram(args []string) (*program, error) {
	p := &program{cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{}), answers: map[int]chan answer{}, lost: map[string]int{}}
	p.cmd.Stderr, p.cmd.WaitDelay = &p.stderr, time.Second
	ownGroup(p.cmd)
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.stdout, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.listen()
	return p, nil
}

// listen reads the program's lines.
func (p *program) listen() {
	defer close(p.ended)
	lines := bufio.NewScanner(p.stdout)
	for lines.Scan() {
		var a answer
		err := json.Unmarshal(lines.Bytes(), &a)
		p.mu.Lock()
		switch {
		case err != nil:
			p.noise = fmt.Sprintf("the line %.200q: %v", lines.Bytes(), err)
		case a.Event == "lost":
			p.lost[a.Name]++
		case p.answers[a.ID] != nil:
			p.answers[a.ID] <- a
			delete(p.answers, a.ID)
		default:
			p.noise = fmt.Sprintf("the line %.200q, which is neither an event nor the answer to an open request", lines.Bytes())
		}
		p.mu.Unlock()
	}
}

// send sends a request. The channel delivers the answer.
func (p *program) send(r request) (<-chan answer, error) {
	p.mu.Lock()
	p.last++
	r.ID = p.last
	ch := make(chan answer, 1)
	p.answers[r.ID] = ch
	p.mu.Unlock()
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	_, err = p.stdin.Write(append(line, '\n'))
	return ch, err
}

// toldLost reports whether the program has reported a lock as lost.
func (p *program) toldLost(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost[name] > 0
}

// complaint returns the program's invalid output, if any, and its standard error.
func (p *program) complaint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	parts := []string{}
	if p.noise != "" {
		parts = append(parts, p.noise)
	}
	if said := p.stderr.String(); said != "" {
		parts = append(parts, "its standard error: "+said)
	}
	return strings.Join(parts, "; ")
}

// grace is how long a program may take to exit on its own.
const grace = 2 * time.Second

// end ends the program.
func (p *program) end() {
	_, _ = p.send(request{Do: "close"})
	_ = p.stdin.Close()
	kill := time.AfterFunc(grace, func() {
		_ = p.cmd.Process.Kill()
		_ = p.stdout.Close() // a child of the program may have it open too
	})
	<-p.ended
	_ = p.cmd.Wait()
	kill.Stop()
}
