package services

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/fault"
)

func TestImagesThatCannotBeFetched(t *testing.T) {
	offline := errors.New(`pulling x: Get "https://registry.example/v2/": dial tcp: lookup registry.example: no such host`)
	s := wanted(t, infra())
	for name, c := range map[string]struct {
		list    []*Unfetched
		message string
		cause   string
		steps   []string // what each begins with or has in it, in order
	}{
		"offline": {[]*Unfetched{{s[0], offline}}, "the image mysql:8.0 of mysql cannot be fetched", "the VM cannot reach the registry (lookup registry.example: no such host)",
			[]string{"curl -sSI https://registry.example/v2/", "image build --load mysql:8.0=ARCHIVE --as NAME", "infra.mysql.image", "infra.mysql.enabled = false"}},
		"no such image": {[]*Unfetched{{s[0], errors.New("pulling mysql:8.0: manifest unknown")}}, "the image mysql:8.0 of mysql cannot be fetched", "pulling mysql:8.0: manifest unknown",
			[]string{"infra.mysql.image", "docker pull mysql:8.0", "--load mysql:8.0=ARCHIVE --as NAME", "infra.mysql.enabled = false"}},
		"two": {[]*Unfetched{{s[0], offline}, {s[1], offline}}, "the images mysql:8.0 of mysql and " + s[1].Image + " of redis cannot be fetched", "the VM cannot reach the registry (lookup registry.example: no such host)",
			[]string{"curl -sSI https://registry.example/v2/", "--load mysql:8.0=ARCHIVE --load " + s[1].Image + "=ARCHIVE --as NAME", "infra.mysql.image and infra.redis.image", "infra.mysql.enabled = false and infra.redis.enabled = false"}},
	} {
		f := CannotFetch(c.list...)
		if f.Code != fault.ServiceNotReady || f.Message != c.message || f.Cause != c.cause || len(f.NextSteps) != len(c.steps) {
			t.Errorf("%s: %+v", name, f)
			continue
		}
		for i, want := range c.steps {
			if !strings.Contains(f.NextSteps[i], want) {
				t.Errorf("%s: step %d is %q, want %q", name, i, f.NextSteps[i], want)
			}
		}
		if slices.ContainsFunc(f.NextSteps, func(s string) bool { return strings.Contains(s, "docker logs") }) {
			t.Errorf("%s: there is no container to look at: %q", name, f.NextSteps)
		}
	}
}
