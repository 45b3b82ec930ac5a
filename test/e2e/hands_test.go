package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// handsFor is how long many hands are at work.
const handsFor = 60 * time.Second

// TestManyHands: servers that fork, save, restore, delete and destroy the same
// few instances and snapshots at once, and that are killed meanwhile like VMs
// and supervisors are, are told nothing but what is true, and in the end nothing
// is left.
func TestManyHands(t *testing.T) {
	const hands = 5
	st := newState(t, "MAX_INSTANCES=5")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	end := time.Now().Add(handsFor)
	var mu sync.Mutex
	told := map[string]int{}
	// What may be told to somebody whose instance or snapshot others work on.
	fits := map[fault.Code]bool{
		fault.InstanceLimitExceeded: true, fault.InstanceTerminal: true, fault.InstanceLost: true, fault.InstanceNotFound: true,
		fault.SnapshotNotFound: true, fault.InsufficientHostResources: true, fault.RuntimeNotReady: true,
		fault.OutcomeUnknown: true, fault.Cancelled: true,
	}
	var wg sync.WaitGroup
	for hand := range hands {
		r := rand.New(rand.NewPCG(seed, uint64(hand)))
		wg.Go(func() {
			sv, err := st.startServer()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { sv.session.Close() }()
			for time.Now().Before(end) {
				ctx, cancel := contextFor(3 * time.Minute)
				var instances sandbox.ListInstancesResult
				var snaps sandbox.ListSnapshotsResult
				err := errors.Join(sv.call(ctx, "list_instances", obj{}, &instances), sv.call(ctx, "list_snapshots", obj{}, &snaps))
				if err != nil {
					t.Errorf("lists: %v", err)
				}
				pick := func() string {
					if len(instances.Instances) == 0 {
						return ""
					}
					return instances.Instances[r.IntN(len(instances.Instances))].InstanceID
				}
				snap := ""
				if n := len(snaps.Snapshots); n > 0 {
					snap = snaps.Snapshots[r.IntN(n)].SnapshotID
				}
				tool, args := "", obj{}
				switch n := r.IntN(100); {
				case n < 25 || pick() == "":
					tool, args = "create_instance", minimal(st.workspace)
				case n < 50:
					tool, args = "fork_instance", obj{"instance_id": pick(), "count": 1 + r.IntN(2)}
				case n < 60:
					tool, args = "snapshot_instance", obj{"instance_id": pick()}
				case n < 70 && snap != "":
					tool, args = "restore_instance", obj{"snapshot_id": snap}
				case n < 80 && snap != "":
					tool, args = "delete_snapshot", obj{"snapshot_id": snap}
				case n < 92:
					tool, args = "destroy_instance", obj{"instance_id": pick(), "force": true}
				case n < 94:
					if pid := st.qemuPID(pick()); pid != 0 {
						unix.Kill(pid, unix.SIGKILL)
					}
				case n < 96:
					if pid := pidOf("__supervise\x00run", vmName(pick())); pid != 0 {
						unix.Kill(pid, unix.SIGKILL)
					}
				case n < 98:
					if out, err := st.cli("gc"); err != nil && !strings.Contains(err.Error(), "in use") {
						t.Logf("gc: %v %s", err, out)
					}
				default:
					tool = "killed" // in the middle of a fork, or before, or after
					cut, id, server := make(chan struct{}), pick(), sv
					go func() {
						defer close(cut)
						_ = server.call(ctx, "fork_instance", obj{"instance_id": id, "count": 2}, nil)
					}()
					time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
					_ = sv.cmd.Process.Kill()
					sv.session.Close()
					<-cut
					if sv, err = st.startServer(); err != nil {
						t.Error(err)
						cancel()
						return
					}
				}
				if tool != "" && tool != "killed" {
					var out struct {
						Status   string              `json:"status"`
						Children []sandbox.ForkChild `json:"children"`
					}
					err = sv.call(ctx, tool, args, &out)
				}
				what := tool + " ok"
				var te *toolError
				switch {
				case errors.As(err, &te):
					what = tool + " " + string(te.Code)
					inUse := tool == "delete_snapshot" && te.Code == fault.InvalidArgument
					if !fits[te.Code] && !inUse {
						t.Errorf("%s %v: %v %v", tool, args, te, te.Details["probable_cause"])
					}
				case err != nil && !errors.Is(err, context.Canceled):
					t.Errorf("%s %v: %v", tool, args, err)
				}
				mu.Lock()
				told[what]++
				mu.Unlock()
				cancel()
			}
		})
	}
	wg.Wait()
	t.Logf("told: %v", told)
	sv := st.start(t)
	var list sandbox.ListInstancesResult
	sv.must(t, "list_instances", obj{}, &list)
	alive := 0
	for _, i := range list.Instances {
		if i.Status == "running" {
			// What is said to run does.
			if out := sv.sh(t, i.InstanceID, "echo works"); out != "works" {
				t.Errorf("%s: %q", i.InstanceID, out)
			}
			alive++
		}
		sv.must(t, "destroy_instance", obj{"instance_id": i.InstanceID, "force": true}, nil)
	}
	t.Logf("%d run in the end", alive)
	for {
		var snaps sandbox.ListSnapshotsResult
		sv.must(t, "list_snapshots", obj{}, &snaps)
		if len(snaps.Snapshots) == 0 {
			break
		}
		for _, s := range snaps.Snapshots {
			var te *toolError
			ctx, cancel := contextFor(time.Minute)
			if err := sv.call(ctx, "delete_snapshot", obj{"snapshot_id": s.SnapshotID}, nil); err != nil && (!errors.As(err, &te) || te.Code != fault.SnapshotNotFound) {
				t.Fatalf("%s: %v", s.SnapshotID, err)
			}
			cancel()
		}
	}
	await(t, time.Minute, func() bool { return len(st.processes()) == 0 })
	st.nothingLeft(t)
	if glob(st.home, "run", "*.sock") {
		t.Error("a socket is left")
	}
}
