package lima

import (
	"testing"

	"sandboxforge/internal/backend/backendtest"
)

// TestContract is the contract on the stand-in with guests that are none; the
// same with VMs is TestContractWithVMs.
func TestContract(t *testing.T) {
	backendtest.Suite(t, func(t *testing.T) *backendtest.Harness { return newHarness(t, newConfig(t)) })
}
