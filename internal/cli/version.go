package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{env.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if asJSON {
				return writeJSON(env.Stdout, v)
			}
			_, err := fmt.Fprintf(env.Stdout, "sandboxforge %s (%s, %s)\n", v.Version, v.Go, v.Platform)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
