package supervisor

import (
	"context"
	"testing"
	"time"
)

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// launch starts a supervisor and waits until its VM is ready.
func launch(t testing.TB, o Options) *Client {
	t.Helper()
	ctx := testContext(t)
	c, err := Launch(ctx, o, nil)
	if err != nil {
		t.Fatalf("Launch: %v", err)
	}
	t.Cleanup(c.Close)
	if err := c.WaitReady(ctx, nil); err != nil {
		t.Fatalf("WaitReady: %v", err)
	}
	return c
}

func TestSmoke(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	if err := c.Stop(testContext(t), "", time.Second); err != nil {
		t.Fatal(err)
	}
	end, err := ReadEnd(o.Dir)
	t.Logf("%+v %v", end.Reason, err)
}
func launchAndHang(string) {}
