package mcpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// lockedBuffer is a client that reads everything.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// throughGuard returns what the SDK would read and what the client is told.
func throughGuard(t testing.TB, input string, tune func(*guard)) (passed, answers []string) {
	t.Helper()
	var out lockedBuffer
	g := newGuard(io.NopCloser(strings.NewReader(input)), newLineWriter(&out))
	g.grace = time.Nanosecond
	if tune != nil {
		tune(g)
	}
	raw, err := io.ReadAll(g)
	if err != nil {
		t.Fatalf("%q ends the session: %v", input, err)
	}
	g.Close()
	<-g.out.done
	split := func(s string) []string {
		if s = strings.TrimSpace(s); s == "" {
			return nil
		}
		return strings.Split(s, "\n")
	}
	return split(string(raw)), split(out.b.String())
}

func TestGuard(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	long := `{"jsonrpc":"2.0","id":"L","method":"tools/call","params":{"x":"` + strings.Repeat("y", 300) + `"}}`
	for _, c := range []struct {
		name   string
		line   string
		passed string
		id     string
		code   int64
	}{
		{"a call", ping, ping, "", 0},
		{"space around", " \t" + ping + "  \r", ping, "", 0},
		{"space inside", `{ "jsonrpc" : "2.0", "id" : 1, "method" : "ping" }`, ping, "", 0},
		{"a byte order mark", "\xef\xbb\xbf" + ping, ping, "", 0},
		{"a response", `{"jsonrpc":"2.0","id":9,"result":{}}`, `{"jsonrpc":"2.0","id":9,"result":{}}`, "", 0},
		{"an unknown method", `{"jsonrpc":"2.0","id":5,"method":"nope"}`, `{"jsonrpc":"2.0","id":5,"method":"nope"}`, "", 0},
		{"an empty line", "", "", "", 0},
		{"no JSON", "hello", "", "null", jsonrpc.CodeParseError},
		{"half a message", ping[:20], "", "null", jsonrpc.CodeParseError},
		{"two messages", ping + ping, "", "null", jsonrpc.CodeParseError},
		{"NUL bytes", "\x00\x00\x00", "", "null", jsonrpc.CodeParseError},
		{"binary", "\xff\xfe\x80", "", "null", jsonrpc.CodeParseError},
		{"too deep", strings.Repeat("[", 200000), "", "null", jsonrpc.CodeParseError},
		{"a string", `"x"`, "", "null", jsonrpc.CodeInvalidRequest},
		{"a number", `7`, "", "null", jsonrpc.CodeInvalidRequest},
		{"null", `null`, "", "null", jsonrpc.CodeInvalidRequest},
		{"an empty object", `{}`, "", "null", jsonrpc.CodeInvalidRequest},
		{"the wrong version", `{"jsonrpc":"1.0","id":3,"method":"ping"}`, "", "3", jsonrpc.CodeInvalidRequest},
		{"no version", `{"id":"a","method":"ping"}`, "", `"a"`, jsonrpc.CodeInvalidRequest},
		{"an id of the wrong type", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, "", "null", jsonrpc.CodeInvalidRequest},
		{"a method of the wrong type", `{"jsonrpc":"2.0","id":4,"method":7}`, "", "4", jsonrpc.CodeInvalidRequest},
		{"a batch", "[" + ping + "]", "", "null", jsonrpc.CodeInvalidRequest},
		{"an empty batch", "[]", "", "null", jsonrpc.CodeInvalidRequest},
		{"too long", long, "", `"L"`, jsonrpc.CodeInvalidRequest},
		{"too long and no JSON", strings.Repeat("x", 300), "", "null", jsonrpc.CodeInvalidRequest},
	} {
		tune := func(g *guard) {
			g.lineMax = 256
			if c.name == "too deep" {
				g.lineMax = maxLine
			}
		}
		// The session goes on: what follows is handed on.
		const after = `{"jsonrpc":"2.0","id":"after","method":"ping"}`
		passed, answers := throughGuard(t, c.line+"\n"+after+"\n", tune)
		want := []string{after}
		if c.passed != "" {
			want = []string{c.passed, after}
		}
		if fmt.Sprint(passed) != fmt.Sprint(want) {
			t.Errorf("%s: passed %q", c.name, passed)
		}
		if c.code == 0 {
			if len(answers) != 0 {
				t.Errorf("%s: answered %q", c.name, answers)
			}
			continue
		}
		var said struct {
			ID    json.RawMessage `json:"id"`
			Error struct {
				Code int64 `json:"code"`
			} `json:"error"`
		}
		if len(answers) != 1 || json.Unmarshal([]byte(answers[0]), &said) != nil || said.Error.Code != c.code || string(said.ID) != c.id {
			t.Errorf("%s: answered %q, want code %d for id %s", c.name, answers, c.code, c.id)
		}
	}
}

func TestGuardSplitsBatchesOfOldVersions(t *testing.T) {
	init := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}`
	a, b := `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	passed, answers := throughGuard(t, init+"\n["+a+",7,"+b+"]\n", nil)
	if fmt.Sprint(passed) != fmt.Sprint([]string{init, a, b}) || len(answers) != 1 {
		t.Errorf("passed %q, answered %q", passed, answers)
	}
}

func TestGuardRefusesAnIDThatIsInUse(t *testing.T) {
	call := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	passed, answers := throughGuard(t, call+"\n"+call+"\n", nil)
	if len(passed) != 1 || len(answers) != 1 || !strings.Contains(answers[0], `"id":null`) {
		t.Errorf("passed %q, answered %q", passed, answers)
	}
}

// A line without end must not be kept in memory.
func TestGuardBoundsMemory(t *testing.T) {
	endless := io.MultiReader(io.LimitReader(repeat('x'), 64<<20), strings.NewReader("\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n"))
	var out lockedBuffer
	g := newGuard(io.NopCloser(endless), newLineWriter(&out))
	g.grace, g.lineMax = time.Nanosecond, 1<<20
	line, tooLong, err := g.line()
	if err != nil || !tooLong || cap(line) > 4<<20 {
		t.Errorf("line of %d bytes (capacity %d), too long %t, %v", len(line), cap(line), tooLong, err)
	}
	g.Close()
}

type repeat byte

func (r repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// A shell pipe closes its end right after the question.
func TestGuardHoldsTheEndBackUntilAllIsAnswered(t *testing.T) {
	var out lockedBuffer
	g := newGuard(io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":"q","method":"ping"}`)), newLineWriter(&out))
	g.grace = time.Hour
	defer g.Close()
	if _, err := g.Read(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() {
		_, err := g.Read(make([]byte, 4096))
		end <- err
	}()
	if _, err := g.Write([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{}}` + "\n")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-end:
		t.Fatalf("the end came before the answer: %v", err)
	default:
	}
	if _, err := g.Write([]byte(`{"jsonrpc":"2.0","id":"q","result":{}}` + "\n")); err != nil {
		t.Fatal(err)
	}
	if err := <-end; err != io.EOF {
		t.Errorf("after the answer: %v", err)
	}
}

// A client that has stopped reading must not keep the server from closing.
func TestLineWriterLeavesABlockedWrite(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	l := newLineWriter(w)
	result := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := l.Write([]byte("nobody reads this\n"))
			result <- err
		}()
	}
	l.Close()
	for range 2 {
		if err := <-result; err == nil {
			t.Error("a write that nobody took succeeded")
		}
	}
	r.Close()
	<-l.done
}

// No input ends the session, and whatever is handed on is a message that the
// SDK accepts, one per line.
func FuzzGuard(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n", "[]\n", "[1]", "\n\n", `{"jsonrpc":"2.0","id":1.5,"method":""}`,
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}` + "\n" + `[{"jsonrpc":"2.0","method":"x"},[]]`,
		"{\"id\":\"\xff\"}\n", `{"jsonrpc":"2.0","result":1}`, "\x00", `{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, input string) {
		passed, answers := throughGuard(t, input, func(g *guard) { g.lineMax = 512 })
		for _, line := range passed {
			if _, err := jsonrpc.DecodeMessage([]byte(line)); err != nil || line[0] != '{' {
				t.Errorf("%q let %q through: %v", input, line, err)
			}
		}
		for _, a := range answers {
			if !json.Valid([]byte(a)) {
				t.Errorf("%q was answered with %q", input, a)
			}
		}
	})
}
