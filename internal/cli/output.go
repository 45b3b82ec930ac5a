package cli

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
)

// jsonFlag adds --json.
func jsonFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVar(p, "json", false, "print one JSON value instead of text, also for errors")
}

// writeJSON prints v for programs.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
