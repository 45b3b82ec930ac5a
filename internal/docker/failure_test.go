package docker

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNotReached(t *testing.T) {
	for name, c := range map[string]struct {
		output, registry, image, reason string
	}{
		"run, name not known": {
			"Unable to find image 'mysql:8.0' locally\ndocker: Error response from daemon: Get \"https://registry.example/v2/\": dial tcp: lookup registry.example on 10.0.2.3:53: no such host.\nSee 'docker run --help'.\n",
			"registry.example", "mysql:8.0", "lookup registry.example on 10.0.2.3:53: no such host",
		},
		"run, no route": {
			"docker: Error response from daemon: Get \"https://registry.example:5000/v2/\": dial tcp 192.0.2.7:5000: connect: no route to host\n\nRun 'docker run --help' for more information\n",
			"registry.example:5000", "", "dial tcp 192.0.2.7:5000: connect: no route to host",
		},
		"run, containerd's words": {
			"docker: Error response from daemon: failed to resolve reference \"registry.example/a/b:1\": failed to do request: Head \"https://registry.example/v2/a/b/manifests/1\": dial tcp: lookup registry.example: no such host\n",
			"registry.example", "registry.example/a/b:1", "lookup registry.example: no such host",
		},
		"without an address": {
			"Error response from daemon: lookup registry.example on 10.0.2.3:53: no such host\n",
			"registry.example", "", "lookup registry.example on 10.0.2.3:53: no such host",
		},
		"buildx": {
			"#2 [internal] load metadata for registry.example/library/python:3\n#2 ERROR: failed to do request: Head \"https://registry.example/v2/library/python/manifests/3\": tls: failed to verify certificate: x509: certificate signed by unknown authority\nERROR: failed to solve: python:3: failed to resolve source metadata for registry.example/library/python:3: ...\n",
			"registry.example", "python:3", "x509: certificate signed by unknown authority",
		},
		"a token": {
			"Error response from daemon: Get \"https://auth.example/token?scope=x\": dial tcp: lookup auth.example: no such host\n",
			"auth.example", "", "lookup auth.example: no such host",
		},
		"what a build's step says": {"#7 [2/2] RUN go mod download\n#7 1.2 Get \"https://proxy.example/mod/@v/list\": dial tcp: lookup proxy.example: no such host\nERROR: failed to solve: process \"/bin/sh\" did not complete\n", "", "", ""},
		"no such image":            {"docker: Error response from daemon: manifest for a:1 not found: manifest unknown\n", "", "", ""},
		"nothing":                  {"", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			u, ok := NotReached(c.output)
			if ok != (c.registry != "") || u != (Unreached{c.registry, c.image, c.reason}) {
				t.Fatalf("%+v, %v", u, ok)
			}
			if !ok {
				return
			}
			if cause := u.Cause(""); !strings.Contains(cause, c.reason) || c.image != "" && !strings.HasSuffix(cause, "does not have "+c.image) {
				t.Error(cause)
			}
			if next := u.Next("given:1"); next[0] != "check with run_command: curl -sSI https://"+c.registry+"/v2/" || !strings.Contains(next[1], "--load given:1=ARCHIVE --as NAME") {
				t.Error(next)
			}
		})
	}
}

func FuzzNotReached(f *testing.F) {
	f.Add("docker: Error response from daemon: Get \"https://registry.example/v2/\": dial tcp: lookup registry.example: no such host.\nSee 'docker run --help'.")
	f.Fuzz(func(t *testing.T, output string) {
		if u, ok := NotReached(output); ok && (u.Registry == "" || u.Reason == "" || len(u.Cause("")) > 1000) {
			t.Errorf("%+v", u)
		}
		if c := Complaint(output); len(c) > 510 || !utf8.ValidString(c) {
			t.Errorf("%q", c)
		}
	})
}

func TestComplaint(t *testing.T) {
	for in, want := range map[string]string{
		"docker: no such thing.\nSee 'docker run --help'.\n":                       "docker: no such thing.",
		"docker: no such thing.\n\nRun 'docker run --help' for more information\n": "docker: no such thing.",
		"10%\r20%\n": "20%",
		"":           "",
	} {
		if got := Complaint(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	long := strings.Repeat("wörter und ", 100)
	got := Complaint(long)
	if words := strings.TrimSuffix(got, " ..."); words == got || len(got) > 510 || !strings.HasPrefix(long, words+" ") {
		t.Errorf("%q", got)
	}
	if got := Words(strings.Repeat("ö", 100), 51); !utf8.ValidString(got) || len(got) > 60 {
		t.Errorf("%q", got)
	}
}
