package docker

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestBuildCommandLine(t *testing.T) {
	b := Build{Context: "/w", Dockerfile: "/w/Dockerfile", Tags: []string{"a:1", "a:2"}, Target: "dev", Args: map[string]string{"B": "x y", "A": "$(id)"}, Labels: map[string]string{"l": ""}, Buildkit: true}
	want := []string{"buildx", "build", "--progress=plain", "--load", "--file=/w/Dockerfile", "--target=dev", "--tag=a:1", "--tag=a:2", "--build-arg=A=$(id)", "--build-arg=B=x y", "--label=l=", "--", "/w"}
	if got := b.CommandLine(); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	b = Build{Context: "/w", Dockerfile: "/d", NoCache: true, IDFile: "/i"}
	if got := b.CommandLine(); !slices.Equal(got, []string{"build", "--no-cache", "--file=/d", "--iidfile=/i", "--", "/w"}) {
		t.Errorf("%+v", got)
	}
}

const buildkitOutput = "#0 building with \"default\" instance using docker driver\n\n" +
	"#1 [internal] load build definition from Dockerfile\n#1 transferring dockerfile: 98B done\n#1 DONE 0.0s\n" +
	"#5 [dev 1/2] COPY bin /bin\n#5 CACHED\n\n#6 [2/12] RUN echo \"#7 [3/3] no\"\n#6 0.121 #9 [3/3] RUN no step\n#6 DONE 0.3s\n#7 exporting to image\n"

func steps(r io.Reader) (list []BuildStep) {
	s := &BuildSteps{On: func(s BuildStep) { list = append(list, s) }}
	_, _ = io.Copy(s, bufio.NewReaderSize(r, 16))
	return list
}

func TestBuildSteps(t *testing.T) {
	want := []BuildStep{{0, 0, "[internal] load build definition from Dockerfile"}, {1, 2, "[dev 1/2] COPY bin /bin"}, {2, 12, "[2/12] RUN echo \"#7 [3/3] no\""}, {0, 0, "exporting to image"}}
	for _, r := range []io.Reader{strings.NewReader(buildkitOutput), iotest.OneByteReader(strings.NewReader(buildkitOutput))} {
		if got := steps(r); !slices.Equal(got, want) {
			t.Errorf("%+v", got)
		}
	}
	if got := steps(strings.NewReader("Step 1/2 : FROM scratch\r\n ---> x\nStep 2/2 : COPY a /a\n")); !slices.Equal(got, []BuildStep{{1, 2, "[1/2] FROM scratch"}, {2, 2, "[2/2] COPY a /a"}}) {
		t.Errorf("%+v", got)
	}
}

func FuzzBuildSteps(f *testing.F) {
	f.Add([]byte(buildkitOutput))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &BuildSteps{On: func(s BuildStep) {
			if s.Number < 0 || s.Total < 0 || len(s.Text) > maxStepLine+16 {
				t.Errorf("%+v", s)
			}
		}}
		for _, c := range b {
			_, _ = s.Write([]byte{c})
		}
		if len(s.line) > maxStepLine {
			t.Errorf("keeps %d bytes", len(s.line))
		}
	})
}
