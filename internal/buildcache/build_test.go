package buildcache

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/config"
)

func TestDockerfile(t *testing.T) {
	for _, c := range []struct {
		name, text string
		args       map[string]string
		images     []string
		declared   []string
	}{
		{"one", "FROM alpine:3.20\nRUN true\n", nil, []string{"alpine:3.20"}, nil},
		{"scratch", "from scratch\nCOPY a /a", nil, nil, nil},
		{"stages", "FROM --platform=linux/amd64 golang:1 AS Build\nFROM build as b2\nFROM scratch\nCOPY --from=build /a /a\nCOPY --chown=1:1 --from=2 a b\nCOPY --from=busybox:1 /b /b\nCOPY --from=0 c d", nil, []string{"golang:1", "busybox:1"}, nil},
		{"a later stage is an image", "FROM x\nCOPY --from=later /a /a\nFROM y AS later", nil, []string{"x", "later", "y"}, nil},
		{"mount", "FROM a\nRUN --mount=type=bind,from=img:2,target=/x --mount=type=cache,target=/y --network=none cmd --mount=from=no", nil, []string{"a", "img:2"}, nil},
		{"default argument", "ARG TAG=3.20\nARG REG\nFROM ${REG:-docker.io}/alpine:$TAG", nil, []string{"docker.io/alpine:3.20"}, []string{"TAG", "REG"}},
		{"given argument", "ARG TAG=3.20\nFROM alpine:${TAG}", map[string]string{"TAG": "edge"}, []string{"alpine:edge"}, []string{"TAG"}},
		{"argument of an argument", "ARG A=1\nARG B=\"x-$A\"\nFROM i:${B}", nil, []string{"i:x-1"}, []string{"A", "B"}},
		{"not to be told", "FROM base-$TARGETARCH AS x\nFROM ${Y%z}", nil, []string{"base-$TARGETARCH", "${Y%z}"}, nil},
		{"argument of a stage", "FROM a\nARG GIT_COMMIT\nARG V=1 W", nil, []string{"a"}, []string{"GIT_COMMIT", "V", "W"}},
		{"continued", "FROM \\\n  # why\n\n  alpine \\\n AS x\nRUN a \\\n FROM b", nil, []string{"alpine"}, nil},
		{"escape", "# escape=`\nFROM a`\n:1\nCOPY c:\\ d\\\nFROM b", nil, []string{"a", "b"}, nil},
		{"syntax", "#syntax=docker/dockerfile:1\nFROM a\n# syntax=no", nil, []string{"docker/dockerfile:1", "a"}, nil},
		{"here-document", "FROM a\nRUN <<EOF cat\nFROM b\nEOF\nCOPY <<-'X' <<Y /z/\nFROM c\n\tX\nFROM d\nY\nFROM e", nil, []string{"a", "e"}, nil},
		{"target stage by argument", "ARG S=one\nFROM a AS one\nFROM $S", nil, []string{"a"}, []string{"S"}},
		{"windows lines, BOM", "\ufeffFROM a\r\nARG B\r\n", nil, []string{"a"}, []string{"B"}},
		{"onbuild", "FROM a\nONBUILD COPY --from=x / /", nil, []string{"a"}, nil},
		{"nonsense", "FROM\nFROM --platform=x\nARG\n\x00", nil, nil, nil},
	} {
		f := ParseDockerfile([]byte(c.text))
		if got := f.Images(c.args); !slices.Equal(got, c.images) {
			t.Errorf("%s: images %q, want %q", c.name, got, c.images)
		}
		if !slices.Equal(f.Args, c.declared) {
			t.Errorf("%s: arguments %q, want %q", c.name, f.Args, c.declared)
		}
	}
}

// TestArgumentsThatGrow: each ARG can double the one before it, which must cost
// the host nothing; the name is then one that only Docker can tell.
func TestArgumentsThatGrow(t *testing.T) {
	text := "ARG A0=aaaaaaaa\n"
	for i := range 22 {
		text += fmt.Sprintf("ARG A%d=$A%d$A%d\n", i+1, i, i)
	}
	text += "FROM $A22\n"
	if got := ParseDockerfile([]byte(text)).Images(nil); len(got) != 1 || got[0] != "$A22" {
		t.Errorf("%d images, the first of %d bytes", len(got), len(got[0]))
	}
	wide := "ARG A=" + strings.Repeat("a", 4000) + "\nFROM x" + strings.Repeat("$A", 100_000)
	if got := ParseDockerfile([]byte(wide)).Images(nil); len(got) != 1 || len(got[0]) > 200_001 {
		t.Errorf("%d images, the first of %d bytes", len(got), len(got[0]))
	}
}

func FuzzDockerfile(f *testing.F) {
	f.Add("# escape=`\nARG A=${B:-x}\nFROM $A AS b\nCOPY --from=b <<E x\nE\n", "A", "v")
	f.Fuzz(func(t *testing.T, text, k, v string) {
		p := ParseDockerfile([]byte(text))
		if n := len(p.Images(map[string]string{k: v})); n > maxImages {
			t.Errorf("%d images", n)
		}
	})
}

// TestKeyCoversEachField changes every field of an Input by reflection: a field
// that somebody adds and forgets in Key fails here.
func TestKeyCoversEachField(t *testing.T) {
	base := func() Input {
		return Input{Content: "c", Ignore: []byte("i"), Dockerfile: "d", Target: "t", Args: map[string]string{"A": "1"}, Auto: map[string]string{"G": "1"}, Bases: []Base{{"r", "i"}}}
	}
	seen := map[string]string{base().Key(): "the same"}
	note := func(name string, in Input) {
		if other, ok := seen[in.Key()]; ok {
			t.Errorf("another %s has the key of %s", name, other)
		}
		seen[in.Key()] = name
	}
	typ := reflect.TypeFor[Input]()
	for i := range typ.NumField() {
		in := base()
		switch f := reflect.ValueOf(&in).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Bool:
			f.SetBool(!f.Bool())
		case reflect.Map:
			f.SetMapIndex(reflect.ValueOf("B"), reflect.ValueOf(""))
		case reflect.Slice:
			if f.Type().Elem().Kind() == reflect.Uint8 {
				f.Index(0).SetUint('j')
			} else {
				f.Set(reflect.AppendSlice(f, f))
			}
		default:
			t.Fatalf("%s is not tested", typ.Field(i).Name)
		}
		note(typ.Field(i).Name, in)
	}
	in := base()
	in.Bases[0].ID = ""
	note("absent base", in)
	in = base()
	in.Args = map[string]string{"A": "2"}
	note("value of an argument", in)
	in.Args = map[string]string{"A1": ""}
	note("name of an argument", in)
	in = base()
	in.Args, in.Auto = in.Auto, in.Args
	note("who gave the argument", in)
	in = base()
	in.Content, in.Target = "", "tc"
	note("the same text elsewhere", in)
}

func FuzzKeyIsInjective(f *testing.F) {
	f.Add("a", "b", "c", "d", "e", "f", "g", "h")
	f.Fuzz(func(t *testing.T, c1, t1, k1, v1, c2, t2, k2, v2 string) {
		a := Input{Content: c1, Target: t1, Args: map[string]string{k1: v1}}
		b := Input{Content: c2, Target: t2, Args: map[string]string{k2: v2}}
		if (a.Key() == b.Key()) != reflect.DeepEqual(a, b) {
			t.Errorf("%+v and %+v", a, b)
		}
	})
}

func TestCachedTag(t *testing.T) {
	clean, dirty := false, true
	sha := strings.Repeat("ab12", 10)
	full := State{Commit: sha, Dirty: &clean, Dependencies: strings.Repeat("d", 64), Content: strings.Repeat("c", 64)}
	unclean, nogit := full, full
	unclean.Dirty = &dirty
	nogit.Commit, nogit.Dirty, nogit.Dependencies = "", nil, ""
	usual := config.ImageCachingConfig{Strategy: "smart", TagFormat: "{image}:{git_short}-{deps_hash}"}
	with := func(strategy, format string) config.ImageCachingConfig {
		return config.ImageCachingConfig{Strategy: strategy, TagFormat: format}
	}
	for _, c := range []struct {
		cfg   config.ImageCachingConfig
		image string
		s     State
		want  string
	}{
		{usual, "app:dev", full, "app:ab12ab12-dddddddddddd"},
		{usual, "reg.example:5000/team/app@sha256:" + strings.Repeat("0", 64), full, "reg.example:5000/team/app:ab12ab12-dddddddddddd"},
		{usual, "reg.example:5000/team/app", nogit, "reg.example:5000/team/app:nogit-nodeps-cccccccccccc"},
		{usual, "app", unclean, "app:ab12ab12-dddddddddddd-cccccccccccc"},
		{with("content_hash", usual.TagFormat), "app", full, "app:ab12ab12-dddddddddddd-cccccccccccc"},
		{with("content_hash", "{image}:{content_hash}"), "app", full, "app:cccccccccccc"},
		{with("git_commit", "{image}:v-{git_short}"), "app", full, "app:v-ab12ab12"},
		{with("smart", "{image}-cache"), "app", full, "app-cache:cccccccccccc"},
		{with("smart", "{image}/{git_short}"), "app", full, "app/ab12ab12:latest"},
	} {
		if got := CachedTag(c.cfg, c.image, c.s, Variant{}); got != c.want {
			t.Errorf("%+v %s: %s, want %s", c.cfg, c.image, got, c.want)
		}
	}
	names := map[string]bool{}
	for _, v := range []Variant{{}, {Target: "dev"}, {Target: "prod"}, {Args: map[string]string{"A": "1"}}, {Args: map[string]string{"A": "2"}}, {Dockerfile: "other"}} {
		names[CachedTag(usual, "app", full, v)] = true
	}
	if len(names) != 6 {
		t.Errorf("variants share names: %v", names)
	}
	long := CachedTag(with("smart", "{image}:"+strings.Repeat("x", 120)+"{git_short}"), "app", full, Variant{Target: "dev"})
	if !config.IsImageReference(long) || !config.IsImageReference(CachedTag(usual, strings.Repeat("a/", 240)+"b", full, Variant{})) {
		t.Errorf("no reference: %s", long)
	}
}

func TestLabelsSayWhatIsKnown(t *testing.T) {
	s := State{Content: "c", Dockerfile: "d"}
	l := Labels(s, "k", "prod", map[string]string{"PASSWORD": "hunter2"})
	for _, k := range []string{LabelCommit, LabelBranch, LabelRevision, LabelDependencies} {
		if _, ok := l[k]; ok {
			t.Errorf("%s is there without a value", k)
		}
	}
	for k, want := range map[string]string{LabelKey: "k", LabelTarget: "prod", LabelContent: "c", LabelDockerfile: "d", LabelTime: "0001-01-01T00:00:00Z", LabelCreated: "0001-01-01T00:00:00Z"} {
		if l[k] != want {
			t.Errorf("%s is %q", k, l[k])
		}
	}
	for k, v := range l {
		if strings.Contains(v, "hunter2") {
			t.Errorf("%s has the value of a build argument", k)
		}
	}
	unknown := clean()
	img := Image{Created: now, Labels: Labels(unknown, "", "", nil)}
	if img.Labels[LabelKey] != "" || Decide(policy(), unknown, Variant{}, nil, &img, now).Reuse != nil {
		t.Errorf("an image of nobody knows what proves something: %v", img.Labels)
	}
}
