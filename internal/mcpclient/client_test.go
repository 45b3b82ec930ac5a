package mcpclient

import (
	"context"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestProgressEndsWithTheCall: what hears of a call's progress is its caller's
// again when the call has returned. The race detector is what fails.
func TestProgressEndsWithTheCall(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "t"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, struct{}, error) {
		for range 3 {
			if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Message: "step"}); err != nil {
				t.Error(err)
			}
		}
		return nil, struct{}{}, nil
	})
	here, there := mcp.NewInMemoryTransports()
	ss, err := server.Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ss.Wait()
	c := &Client{log: &tail{max: 1}, progress: map[string]func(string){}}
	m := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{ProgressNotificationHandler: c.onProgress})
	if c.session, err = m.Connect(t.Context(), here, nil); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	heard := 0
	for range 100 {
		heard = 0 // the caller's
		if err := c.Call(t.Context(), "t", struct{}{}, nil, func(string) { heard++ }); err != nil {
			t.Fatal(err)
		}
		if heard > 3 {
			t.Fatalf("heard of %d of 3 steps", heard)
		}
	}
}
