// Package ui draws on a terminal: tables, one progress line, sizes and
// durations for people. The command line and the demo share it.
//
//	line := ui.NewProgress(os.Stderr, ui.ProgressOptions{})
//	defer line.Close()
//	line.Update("boot", "waiting for the agent")
//
// It knows nothing of sandboxes. What is not a terminal gets plain lines
// without escape sequences; text that came from a guest or a workspace is
// cleaned before it is drawn, so that it cannot move the cursor or recolour
// the screen.
package ui
