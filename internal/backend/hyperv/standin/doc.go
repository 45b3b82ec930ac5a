// Package standin is a program that takes the place of powershell.exe in tests
// of the hyperv backend, on systems that have no Hyper-V.
//
// It reads what the backend writes to Windows PowerShell's stdin and really
// runs it: a parser and an evaluator for the small part of the language that
// the backend's scripts keep to, a binder that knows the cmdlets' parameter
// sets, ConvertTo-Json and error records as Windows PowerShell 5.1 makes them,
// and behind the cmdlets a world of VMs, disks and switches that refuses what
// Hyper-V refuses. The world lies in a directory, so that several processes
// see the same VMs, and tests change it and order faults through Update.
//
//	func TestMain(m *testing.M) {
//		if dir := os.Getenv(standin.StateEnv); dir != "" {
//			os.Exit(standin.Main(dir, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
//		}
//		...
//	}
//
// It is written from Microsoft's documentation of the cmdlets and of
// PowerShell 5.1; whether the real ones do the same can only be seen on
// Windows. The parameter sets in cmdlets.txt are those of the documentation of
// the Hyper-V module of Windows Server 2016, the oldest that has what the
// backend needs. The parser refuses what is outside the part of the language,
// which is how the scripts are held to it.
package standin
