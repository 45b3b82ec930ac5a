package backendtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Suite runs every case on a Harness of its own.
func Suite(t *testing.T, factory func(t *testing.T) *Harness) {
	run(t, factory, []testCase{
		{"ProbeFindsItUsable", probe},
		{"CreateIsIdempotent", createIdempotent},
		{"CreateRefusesAnotherSpec", createExists},
		{"CreateCancelledLeavesNothing", createCancelled},
		{"CreateByManyAtOnce", createConcurrent},
		{"NamesAreChecked", hostileNames},
		{"SpecsAreChecked", hostileSpecs},
		{"MissingVM", missing},
		{"ListNeverInvents", listInvents},
		{"HalfMadeIsBrokenAndDeletable", halfMade},
		{"StartWhileRunning", startRunning},
		{"StartByManyAtOnce", startConcurrent},
		{"StartInTwoProcesses", startTwoProcesses},
		{"StartCancelled", startCancelled},
		{"StopByForceAndStartAgain", stopForced},
		{"KilledVMIsSeenAsGone", killed},
		{"DeleteFromAnotherProcess", deleteElsewhere},
		{"DeleteConcurrentlyWithEverything", deleteStorm},
		{"DiesWithOwner", diesWithOwner},
		{"CreatorIsKilled", creatorKilled},
		{"OwnerIsKilledDuringStart", ownerKilledDuringStart},
		{"DeleterIsKilled", deleterKilled},
		{"AgentAnswers", agentAnswers},
		{"TwoVMsDoNotSeeEachOther", twoVMs},
	})
	StateSuite(t, factory)
}

// StateSuite is the part of Suite that is about saved states, for a backend that
// has more than one way to make them.
func StateSuite(t *testing.T, factory func(t *testing.T) *Harness) {
	run(t, factory, []testCase{
		{"SaveRefused", saveRefused},
		{"SavesAtOnce", savesAtOnce},
		{"SavedAgainAfterAStart", savedAgainAfterAStart},
		{"DamagedStateIsUnfit", stateDamaged},
		{"SaverIsKilled", saverKilled},
		{"SavedVMGoesOnAndOthersBeginThere", saveGoesOn},
		{"CloneOfAClone", cloneOfClone},
		{"SaveAndEnd", saveAndEnd},
	})
}

type testCase struct {
	name string
	run  func(*testing.T, *Harness)
}

func run(t *testing.T, factory func(t *testing.T) *Harness, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, factory(t)) })
	}
}

// limit bounds whatever should be quick, far above what a busy host needs.
const limit = 60 * time.Second

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantKind fails unless err is of the kind, and a fault with a remedy.
func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got the error %v, want one that is %q", err, kind)
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		t.Errorf("the error %v is no *fault.Error", err)
	}
}

func wantState(t *testing.T, b backend.Backend, name string, want backend.State) backend.Info {
	t.Helper()
	info, err := b.Inspect(within(t, limit), name)
	ok(t, err)
	if info.State != want || info.Name != name {
		t.Fatalf("VM %s is %s (%s), want %s: %+v", info.Name, info.State, info.Detail, want, info)
	}
	return info
}

// wantGone fails unless nothing tells of the VM any more.
func wantGone(t *testing.T, h *Harness, name string) {
	t.Helper()
	for _, b := range []backend.Backend{h.Backend, h.again(t)} {
		_, err := b.Inspect(within(t, limit), name)
		wantKind(t, err, backend.ErrNotFound)
		all, err := b.List(within(t, limit))
		ok(t, err)
		for _, i := range all {
			if i.Name == name {
				t.Fatalf("List still shows %+v", i)
			}
		}
	}
	if h.StateDir != "" {
		if _, err := os.Lstat(filepath.Join(h.StateDir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("the directory of the VM %s is left: %v", name, err)
		}
	}
}

func create(t *testing.T, h *Harness, name string) {
	t.Helper()
	ok(t, h.Backend.Create(within(t, limit), h.Spec(name)))
}

// start starts a VM that ends with the test.
func start(t *testing.T, h *Harness, name string) backend.Machine {
	t.Helper()
	m, err := h.Backend.Start(within(t, limit), name, backend.StartOptions{})
	ok(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := m.Stop(ctx, 0); err != nil {
			t.Errorf("stop at the end: %v", err)
		}
	})
	info := m.Info()
	t.Logf("started %s: pid %d, accelerator %s", name, info.PID, info.Accelerator)
	return m
}

func wait(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s did not happen within %s", what, limit)
	}
}
