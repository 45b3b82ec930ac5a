package standin

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// StateEnv names the directory of the world in the environment of the program.
const StateEnv = "SANDBOXFORGE_STANDIN_POWERSHELL"

// Main is the program: powershell.exe with -Command -, which runs what comes on
// stdin, a statement at a time. It returns the exit code.
func Main(dir string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := checkArguments(args); err != nil {
		fmt.Fprintln(stderr, err)
		return 64
	}
	e := newEvaluator(dir, stdout, stderr)
	in := bufio.NewReader(stdin)
	pending := ""
	ok := true
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return exitCode(ok) // an unfinished block is dropped
		}
		line = strings.TrimRight(line, "\r\n")
		w, err := Load(dir)
		if err != nil {
			fmt.Fprintln(stderr, err)
			return 70
		}
		e.world = w
		if pending != "" {
			// Only an empty line ends a block.
			if strings.TrimSpace(line) != "" {
				pending += "\n" + line
				continue
			}
			line, pending = pending, ""
		} else if _, err := parse(line); err == errIncomplete {
			pending = line
			continue
		}
		ok = e.interactive(line)
	}
}

func exitCode(ok bool) int {
	if ok {
		return 0
	}
	return 1
}

// interactive runs one input and prints what it outputs, as a prompt would.
func (e *evaluator) interactive(line string) bool {
	b, err := parse(line)
	if err != nil {
		io.WriteString(e.errout, runtimeError("ParseException", "ParserError", "%v", err).block())
		return false
	}
	var out []any
	_, perr := e.run(b.body, e.global, &out)
	for _, v := range out {
		io.WriteString(e.out, text(v)+"\r\n")
	}
	if perr != nil {
		io.WriteString(e.errout, perr.block())
		return false
	}
	return true
}

// checkArguments holds the caller to the arguments that Windows PowerShell is
// to be run with.
func checkArguments(args []string) error {
	want := map[string]string{"-nologo": "", "-noprofile": "", "-noninteractive": "", "-executionpolicy": "bypass", "-command": "-"}
	for i := 0; i < len(args); i++ {
		value, ok := want[strings.ToLower(args[i])]
		if !ok {
			return fmt.Errorf("stand-in: the argument %q", args[i])
		}
		delete(want, strings.ToLower(args[i]))
		if value == "" {
			continue
		}
		if i++; i >= len(args) || !strings.EqualFold(args[i], value) {
			return fmt.Errorf("stand-in: %s needs %q here", args[i-1], value)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("stand-in: these arguments are missing: %v", want)
	}
	return nil
}
