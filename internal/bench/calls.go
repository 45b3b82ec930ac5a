package bench

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/mcpclient"
)

var listening = regexp.MustCompile(`msg=listening .*url=(http://[^ ]+)`)

// calls measures round trips, each a layer further out.
func (b *bench) calls(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		res, err := s.create(ctx, map[string]any{"wait_for_ready": true})
		if err != nil {
			return err
		}
		id := res.InstanceID
		c, err := b.dial(ctx, id)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := s.settle(ctx, id); err != nil {
			return err
		}
		b.say("pings")
		var ping []float64
		for range 10 * b.o.Rounds {
			began := time.Now()
			if _, err := c.Guest().Ping(ctx); err != nil {
				return err
			}
			ping = append(ping, ms(time.Since(began)))
		}
		b.add(figure("agent ping through the supervisor", "ms", "guest Ping over the supervisor's socket", ping))

		web := listening.FindStringSubmatch(s.Log())
		if web == nil {
			return fault.New(fault.Internal, "the server did not say where it listens")
		}
		overHTTP, err := mcpclient.ConnectHTTP(ctx, web[1], b.o.Version)
		if err != nil {
			return err
		}
		defer overHTTP.Close()
		for _, via := range []struct {
			name string
			c    *mcpclient.Client
		}{{"stdio", s.Client}, {"HTTP", overHTTP}} {
			b.say("commands over %s", via.name)
			var over []float64
			for range b.o.Rounds {
				began := time.Now()
				if err := via.c.Call(ctx, "run_command", map[string]any{"instance_id": id, "command": "true"}, nil, nil); err != nil {
					return err
				}
				over = append(over, ms(time.Since(began)))
			}
			b.add(figure(fmt.Sprintf("run_command(\"true\") over MCP %s", via.name), "ms", "run_command, one after the other", over))
		}
		// A shell starting "sh -c true" as the agent does, timed by the guest's
		// clock; ten a sample, because the timing itself starts processes.
		r, err := s.run(ctx, id, fmt.Sprintf(`for i in $(seq 1 %d); do s=$(date +%%s%%N); for j in 1 2 3 4 5 6 7 8 9 10; do sh -c true; done; e=$(date +%%s%%N); echo $(((e - s) / 10)); done`, b.o.Rounds))
		if err != nil {
			return err
		}
		var inside []float64
		for _, f := range strings.Fields(r.Stdout) {
			ns, err := strconv.ParseFloat(f, 64)
			if err != nil {
				return fault.Wrap(err, fault.Internal, "the guest's clock said %q", f)
			}
			inside = append(inside, ns/1e6)
		}
		b.add(figure("  the same start inside the guest", "ms", "a shell in the guest starting `sh -c true`", inside))
		return nil
	}, "MCP_ENABLE_HTTP=1", "MCP_HTTP_HOST=127.0.0.1", "MCP_HTTP_PORT=0", "MCP_HTTP_TOKEN=", "MCP_HTTP_TOKEN_FILE=")
}
