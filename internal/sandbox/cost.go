package sandbox

import (
	"context"
	"sync"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/host"
	"sandboxforge/internal/supervisor"
)

// costReaders bounds the reads of processes' memory maps at once: the kernel
// walks the maps, some milliseconds for a VM that has touched half a GiB.
const costReaders = 4

// addCosts adds to instances what their VMs cost the host.
func (s *Service) addCosts(list []Instance, vms map[string]backend.Info) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, costReaders)
	for i := range list {
		in := &list[i]
		info, ok := vms[in.BackendInstanceName]
		if !ok || info.State != backend.Running || info.PID == 0 {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			in.MemoryPSSBytes = host.ProcessPSS(info.PID)
			if pid := supervisor.PID(s.instanceDir(in.BackendInstanceName)); pid != 0 {
				in.MemoryPSSBytes += host.ProcessPSS(pid)
			}
		})
	}
	wg.Wait()
}

// templateTotals is how many templates there are and what they take on the
// disk, those of former ones that VMs still need included. Templates are
// shared: with other servers too.
func (s *Service) templateTotals(ctx context.Context) (count int, bytes int64, err error) {
	st, err := s.keptTemplates()
	if err != nil {
		return 0, 0, nil // this platform has none
	}
	all, err := st.List(ctx)
	for _, i := range all {
		if !i.Retired {
			count++
		}
		bytes += i.Bytes
	}
	return count, bytes, err
}
