// Package cli is the operator's command line, sandboxforge. Every subcommand
// has its own file; they parse arguments, call the same sandbox.Service as the
// MCP server, and print: tables for people, --json for programs.
//
//	os.Exit(cli.Main(os.Args[1:], cli.System()))
//
// It takes no decisions about leases and knows no hypervisor. Results go to
// stdout, everything else (progress, errors, warnings) to stderr.
//
// # Exit codes
//
//	0    done; doctor: a VM can be made
//	1    failed; the reason, its probable cause and next steps are on stderr
//	2    wrong usage, or a bad environment variable
//	125  exec only: the command could not be run or its end was not seen
//	130  interrupted
//	141  exec only: nobody read the output any more, and the command was ended
//
// exec otherwise ends with the exit code of its command. With --json an error
// is one JSON object on stderr: error_code, message, details.
package cli
