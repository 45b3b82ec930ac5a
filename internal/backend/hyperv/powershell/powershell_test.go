package powershell

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/backend/hyperv/standin"
	"sandboxforge/internal/fault"
)

// In a process that a test started, the test binary is the stand-in.
func TestMain(m *testing.M) {
	if dir := os.Getenv(standin.StateEnv); dir != "" {
		os.Exit(standin.Main(dir, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// host is a world and a pool of stand-ins on it.
func host(t *testing.T, o Options) (dir string, p *Pool) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in is started through a shell script")
	}
	dir = t.TempDir()
	if err := standin.New(dir); err != nil {
		t.Fatal(err)
	}
	o.Path = standin.Executable(t, dir)
	p = NewPool(o)
	t.Cleanup(p.Close)
	return dir, p
}

func faults(t *testing.T, dir string, change func(*standin.Faults)) {
	t.Helper()
	if err := standin.Update(dir, func(w *standin.World) { change(&w.Faults) }); err != nil {
		t.Fatal(err)
	}
}

const echo = "param($p)\n@{ text = [string]$p.text; list = @($p.list | ForEach-Object { [string]$_ }) }"

// TestParametersAreNeverCode sends what would end a string or a line.
func TestParametersAreNeverCode(t *testing.T) {
	_, p := host(t, Options{})
	for _, text := range []string{
		"", "plain", "it's", "''; throw 'x'; '", "\u2019; exit; \u2018", "\u201c$(1)\u201d", "a\nb\r\n\r\nc", "$($env:PATH)", "`n", "\x00\x01", "日本語 ümläut 🧊",
		`C:\Program Files\a "b"`, strings.Repeat("long ", 20000),
	} {
		var out struct {
			Text string
			List List[string]
		}
		err := p.Run(t.Context(), Request{Name: "echo", Script: echo, Parameters: map[string]any{"text": text, "list": []string{text}}}, &out)
		if err != nil || out.Text != text || len(out.List) != 1 || out.List[0] != text {
			t.Errorf("%.40q came back as %.40q, %.40q, %v", text, out.Text, out.List, err)
		}
	}
}

func TestErrorsAreTold(t *testing.T) {
	dir, p := host(t, Options{})
	faults(t, dir, func(f *standin.Faults) { f.Localized = true })
	run := func(script string) *Error {
		t.Helper()
		err := p.Run(t.Context(), Request{Name: "x", Script: script}, nil)
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("got %v", err)
		}
		return e
	}
	e := run("param($p)\nHyper-V\\Set-VM -Name 'nobody' -Notes 'x'")
	if e.Kind() != "ObjectNotFound" || e.Category != "ObjectNotFound" || !e.HasCode(0x80041002) || e.Command != "Set-VM" {
		t.Errorf("an absent VM: %+v", e)
	}
	if e := run("param($p)\nHyper-V\\Get-VM -NoSuchThing 1"); e.Kind() != "NamedParameterNotFound" {
		t.Errorf("an unknown parameter: %+v", e)
	}
	if e := run("param($p)\nthrow 'own words'"); e.Message != "own words" {
		t.Errorf("a thrown text: %+v", e)
	}
	if e := run("this is } no script"); e.ID == "" {
		t.Errorf("a script that does not parse: %+v", e)
	}
	// The process is still good.
	if err := p.Run(t.Context(), Request{Script: "param($p)\n@{ a = 1 }"}, nil); err != nil {
		t.Error(err)
	}
}

func TestNoiseIsNoReply(t *testing.T) {
	dir, p := host(t, Options{})
	faults(t, dir, func(f *standin.Faults) { f.Noise = true })
	var out struct{ N int }
	if err := p.Run(t.Context(), Request{Script: "param($p)\nHyper-V\\Get-VM\n@{ n = 7 }"}, &out); err != nil || out.N != 7 {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestHungShellIsReplaced: the request's outcome is unknown, and the next one
// gets an answer.
func TestHungShellIsReplaced(t *testing.T) {
	dir, p := host(t, Options{Max: 1})
	for _, c := range []struct {
		what  string
		order func(*standin.Faults)
	}{
		{"hangs", func(f *standin.Faults) { f.Hang = []string{"Get-VM"} }},
		{"dies", func(f *standin.Faults) { f.Die = []string{"Get-VM"} }},
	} {
		faults(t, dir, c.order)
		err := p.Run(t.Context(), Request{Name: "list", Script: "param($p)\n@{ n = @(Hyper-V\\Get-VM).Count }", Limit: 2 * time.Second}, nil)
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", c.what, err)
		}
		var out struct{ N int }
		if err := p.Run(t.Context(), Request{Script: "param($p)\n@{ n = @(Hyper-V\\Get-VM).Count + 5 }"}, &out); err != nil || out.N != 5 {
			t.Errorf("the next request: %+v, %v", out, err)
		}
	}
}

// TestLateReplyIsDropped: a caller that left does not disturb the next one on
// the same process.
func TestLateReplyIsDropped(t *testing.T) {
	dir, p := host(t, Options{Max: 1})
	run := func(ctx context.Context, n int) (int, error) {
		var out struct{ N int }
		err := p.Run(ctx, Request{Script: "param($p)\n$x = @(Hyper-V\\Get-VM)\n@{ n = [long]$p.n }", Parameters: map[string]int{"n": n}}, &out)
		return out.N, err
	}
	if _, err := run(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	faults(t, dir, func(f *standin.Faults) { f.Latency = 300 * time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := run(ctx, 1); !errors.Is(err, ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller that left: %v", err)
	}
	if n, err := run(t.Context(), 2); err != nil || n != 2 {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	_, p := host(t, Options{Max: 3})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			text := fmt.Sprint("request ", i)
			var out struct{ Text string }
			if err := p.Run(t.Context(), Request{Script: echo, Parameters: map[string]any{"text": text}}, &out); err != nil || out.Text != text {
				t.Errorf("%q: %q, %v", text, out.Text, err)
			}
		})
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) > 3 || len(p.idle) == 0 {
		t.Errorf("%d processes", len(p.idle))
	}
}

func TestPowerShellThatCannotBeUsed(t *testing.T) {
	dir, p := host(t, Options{})
	faults(t, dir, func(f *standin.Faults) { f.LanguageMode = "ConstrainedLanguage" })
	err := p.Run(t.Context(), Request{Script: "1"}, nil)
	if !fault.Is(err, fault.BackendUnavailable) || !strings.Contains(fault.From(err).Cause, "AppLocker") {
		t.Errorf("constrained language: %v", err)
	}
	missing := NewPool(Options{Path: filepath.Join(t.TempDir(), "none.exe")})
	defer missing.Close()
	if err := missing.Run(t.Context(), Request{Script: "1"}, nil); !fault.Is(err, fault.BackendUnavailable) {
		t.Errorf("no PowerShell: %v", err)
	}
	deaf := filepath.Join(t.TempDir(), "deaf")
	if err := os.WriteFile(deaf, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	silent := NewPool(Options{Path: deaf, StartLimit: 300 * time.Millisecond})
	defer silent.Close()
	if err := silent.Run(t.Context(), Request{Script: "1"}, nil); !fault.Is(err, fault.BackendUnavailable) {
		t.Errorf("a PowerShell that says nothing: %v", err)
	}
}

func TestRequestIsOneASCIILine(t *testing.T) {
	line := request(newNonce(), "param($p)\n'\u00fc'", []byte("{\"a\":\"\u2019\\n\"}"))
	for _, c := range []byte(line) {
		if c < 32 || c > 126 {
			t.Fatalf("%#x in %q", c, line)
		}
	}
}

func TestList(t *testing.T) {
	for in, want := range map[string]int{
		`null`: 0, `[]`: 0, `"a"`: 1, `["a"]`: 1, `["a","b"]`: 2, `{"value":["a","b","c"],"Count":3}`: 3, `{"value":null,"Count":0}`: -1,
	} {
		var l List[string]
		err := json.Unmarshal([]byte(in), &l)
		if want < 0 && err == nil || want >= 0 && (err != nil || len(l) != want) {
			t.Errorf("%s: %q, %v", in, l, err)
		}
	}
}

func FuzzReply(f *testing.F) {
	const nonce = "sbxNONCE"
	wrap := func(s string) []byte { return []byte(nonce + base64.StdEncoding.EncodeToString([]byte(s)) + nonce) }
	f.Add(wrap(`{"ok":true,"data":{"n":1}}`))
	f.Add(wrap(`{"ok":false,"fqid":"a,b","category":"c","hresult":-2147024891,"inner":0,"message":"m"}`))
	f.Add([]byte("WARNING: x" + string(wrap(`{"ok":true,"data":{"value":[1],"Count":1}}`)) + "rest"))
	f.Add([]byte(nonce + "====" + nonce))
	f.Add([]byte(nonce))
	f.Add([]byte("\xef\xbb\xbf"))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseReply(line, nonce)
		if err != nil {
			return
		}
		if !bytes.Contains(line, []byte(nonce)) {
			t.Fatal("a reply out of nothing")
		}
		if len(r.Message) > maxMessage {
			t.Fatal("a message without a bound")
		}
		var out struct {
			N    int
			List List[string]
		}
		r.result(&out)
	})
}
