package rules

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A rule forbids imports to the packages whose path matches one of from.
// Patterns are module-relative; a trailing /... takes the subtree.
type rule struct {
	from    []string
	except  []string
	forbid  []string
	because string
}

const module = "sandboxforge/"

var rules = []rule{
	{
		from:    []string{"internal/..."},
		except:  []string{"internal/mcpserver/...", "internal/mcpclient"},
		forbid:  []string{"github.com/modelcontextprotocol/go-sdk/..."},
		because: "only mcpserver and its counterpart mcpclient know MCP; everything else is used by the command line too",
	},
	{
		from:    []string{"internal/...", "cmd/..."},
		except:  []string{"internal/store/..."},
		forbid:  []string{"database/sql", "modernc.org/sqlite"},
		because: "only store knows SQL, so that every transition goes through its compare-and-set",
	},
	{
		from:    []string{"internal/backend/..."},
		forbid:  []string{"sandboxforge/internal/store", "sandboxforge/internal/sandbox", "sandboxforge/internal/mcpserver", "sandboxforge/internal/supervisor", "sandboxforge/internal/config", "sandboxforge/internal/workspace"},
		because: "a backend knows nothing of leases, MCP, configuration files or workspaces",
	},
	{
		from:    []string{"internal/guest/...", "internal/link/..."},
		forbid:  []string{"sandboxforge/internal/backend/...", "sandboxforge/internal/store", "sandboxforge/internal/sandbox", "sandboxforge/internal/supervisor"},
		because: "the guest client works over any byte stream and knows no backend",
	},
	{
		from:    []string{"internal/agent/...", "cmd/sandboxforge-agent", "cmd/sandboxforge-init"},
		forbid:  []string{"sandboxforge/internal/guest", "sandboxforge/internal/backend/...", "sandboxforge/internal/store", "sandboxforge/internal/sandbox", "sandboxforge/internal/supervisor", "sandboxforge/internal/config", "sandboxforge/internal/workspace", "sandboxforge/internal/image", "sandboxforge/internal/network"},
		because: "the agent is a small program inside the guest and shares only the protocol with the host",
	},
	{
		from:    []string{"internal/supervisor/..."},
		forbid:  []string{"sandboxforge/internal/store", "sandboxforge/internal/sandbox", "sandboxforge/internal/mcpserver", "sandboxforge/internal/workspace", "sandboxforge/internal/config"},
		because: "a supervisor never opens the database and outlives every server: it must not need what they need",
	},
	{
		from:    []string{"internal/store/..."},
		forbid:  []string{"sandboxforge/internal/sandbox", "sandboxforge/internal/backend/...", "sandboxforge/internal/guest/...", "sandboxforge/internal/supervisor"},
		because: "the store records what others decide",
	},
	{
		from:    []string{"internal/workspace/...", "internal/hostpath/...", "internal/config/...", "internal/ignore/..."},
		forbid:  []string{"sandboxforge/internal/sandbox", "sandboxforge/internal/store", "sandboxforge/internal/backend/...", "sandboxforge/internal/supervisor", "sandboxforge/internal/mcpserver"},
		because: "files and configuration are worked on the same way for every instance and backend",
	},
	{
		from:    []string{"internal/image/...", "internal/guestbin/..."},
		forbid:  []string{"sandboxforge/internal/sandbox", "sandboxforge/internal/store", "sandboxforge/internal/backend/...", "sandboxforge/internal/supervisor"},
		because: "building an image needs no VM",
	},
	{
		from:    []string{"internal/template/..."},
		forbid:  []string{"sandboxforge/internal/sandbox", "sandboxforge/internal/store", "sandboxforge/internal/guest", "sandboxforge/internal/supervisor", "sandboxforge/internal/image", "sandboxforge/internal/config", "sandboxforge/internal/backend/qemu", "sandboxforge/internal/backend/fake"},
		because: "a template is a directory with a saved state: what is in it is its maker's business",
	},
	{
		from:    []string{"internal/sandbox/..."},
		forbid:  []string{"sandboxforge/internal/backend/qemu", "sandboxforge/internal/backend/lima", "sandboxforge/internal/backend/hyperv"},
		because: "decisions are taken on Capabilities, never on a hypervisor's name",
	},
	{
		from:    []string{"internal/network/..."},
		forbid:  []string{"sandboxforge/..."},
		because: "a network carries the packets of one VM and is judged by what it is given: it knows nothing of leases, MCP, Docker, a hypervisor's command line or the agent's protocol",
	},
	{
		from:    []string{"internal/...", "cmd/..."},
		except:  []string{"internal/network/..."},
		forbid:  []string{"gvisor.dev/gvisor/..."},
		because: "only network knows the TCP/IP stack",
	},
	{
		from:    []string{"internal/services"},
		forbid:  []string{"sandboxforge/internal/sandbox", "sandboxforge/internal/store", "sandboxforge/internal/guest", "sandboxforge/internal/workspace", "sandboxforge/internal/backend/..."},
		because: "services are containers of some Docker: whose it is, and what is done with their variables, is the caller's business",
	},
	{
		from:    []string{"internal/...", "cmd/..."},
		forbid:  []string{"sandboxforge/internal/standin", "sandboxforge/internal/sshlink/sshtest"},
		because: "stand-ins are for tests alone",
	},
	{
		from:    []string{"internal/sshlink"},
		forbid:  []string{"sandboxforge/internal/backend/...", "sandboxforge/internal/guest", "sandboxforge/internal/agent/...", "sandboxforge/internal/store", "sandboxforge/internal/sandbox", "sandboxforge/internal/supervisor", "sandboxforge/internal/config"},
		because: "a way to a guest over ssh is the same for every hypervisor, and knows nothing of what goes over it",
	},
	{
		from:    []string{"internal/...", "cmd/..."},
		except:  []string{"internal/backend/hyperv/standin/..."},
		forbid:  []string{"sandboxforge/internal/backend/hyperv/standin/..."},
		because: "what takes the place of powershell.exe is for tests alone",
	},
	{
		from:    []string{"internal/backend/hyperv/powershell", "internal/backend/hyperv/standin/..."},
		forbid:  []string{"sandboxforge/internal/backend", "sandboxforge/internal/backend/hyperv"},
		because: "one runs any script, the other is written from the cmdlets' documentation: neither knows what the backend does with it",
	},
	{
		from:    []string{"internal/envfile"},
		forbid:  []string{"sandboxforge/..."},
		because: "a file of variables is a text, on the host and in a guest",
	},
	{
		from:    []string{"internal/buildcache/..."},
		forbid:  []string{"sandboxforge/internal/sandbox", "sandboxforge/internal/store", "sandboxforge/internal/docker", "sandboxforge/internal/guest/...", "sandboxforge/internal/mcpserver", "sandboxforge/internal/supervisor", "sandboxforge/internal/backend/...", "sandboxforge/internal/workspace", "net/...", "os/..."},
		because: "whether an image stands for a build is a pure function of descriptions",
	},
	{
		from:    []string{"internal/fault"},
		forbid:  []string{"sandboxforge/..."},
		because: "everyone imports it",
	},
}

func match(pattern, path string) bool {
	if sub, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == sub || strings.HasPrefix(path, sub+"/")
	}
	return path == pattern
}

func matchAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, path) })
}

// TestImports holds the dependency rules of docs/ARCHITECTURE on the imports
// that shipped code really has. Tests may cross borders.
func TestImports(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		seen++
		rel := strings.TrimPrefix(p.ImportPath, module)
		for _, r := range rules {
			if !matchAny(r.from, rel) || matchAny(r.except, rel) {
				continue
			}
			for _, imp := range p.Imports {
				if matchAny(r.forbid, imp) {
					t.Errorf("%s imports %s: %s", rel, imp, r.because)
				}
			}
		}
	}
	if seen < 10 {
		t.Fatalf("go list showed %d packages; the rules were not checked", seen)
	}
}
