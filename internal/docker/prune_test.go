package docker

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestPrune(t *testing.T) {
	for mode, want := range map[PruneMode][]string{
		PruneSafe:       {"/images/prune", "/build/prune"},
		PruneAggressive: {"/containers/prune", "/networks/prune", "/images/prune", "/volumes/prune", "/build/prune"},
	} {
		var asked []string
		e := engineAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Path)
			filters := r.URL.Query().Get("filters")
			if r.URL.Path != "/build/prune" && !strings.Contains(filters, KeepLabel) {
				t.Errorf("%s %s: %s does not spare what is to be kept", mode, r.URL.Path, filters)
			}
			if r.URL.Path == "/images/prune" && strings.Contains(filters, `"dangling":["true"]`) != (mode == PruneSafe) {
				t.Errorf("%s: images by %s", mode, filters)
			}
			if all := r.URL.Query().Get("all"); r.URL.Path == "/build/prune" && (all == "1") != (mode == PruneAggressive) {
				t.Errorf("%s: build cache with all=%q", mode, all)
			}
			_, _ = fmt.Fprint(w, `{"SpaceReclaimed":10}`)
		}))
		n, err := e.Prune(t.Context(), mode)
		if err != nil || n != int64(10*len(want)) || !slices.Equal(asked, want) {
			t.Errorf("%s: %d bytes, %v, asked %v", mode, n, err, asked)
		}
	}
	if _, err := engineAt(t, http.NotFoundHandler()).Prune(t.Context(), "thorough"); err == nil {
		t.Error("an unknown mode removes something")
	}
}

func TestPruneGoesOn(t *testing.T) {
	e := engineAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/images/prune" {
			w.WriteHeader(http.StatusConflict)
			_, _ = fmt.Fprint(w, `{"message":"a prune operation is already running"}`)
			return
		}
		_, _ = fmt.Fprint(w, `{"SpaceReclaimed":7}`)
	}))
	if n, err := e.Prune(t.Context(), PruneSafe); n != 7 || err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("%d, %v", n, err)
	}
}

func TestPruneOfMoreThanThereIs(t *testing.T) {
	e := engineAt(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"SpaceReclaimed":%d}`, int64(math.MaxInt64))
	}))
	if n, err := e.Prune(t.Context(), PruneSafe); n <= 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
