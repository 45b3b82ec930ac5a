package standin

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(StateEnv); dir != "" {
		os.Exit(Main(dir, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

var shellArguments = []string{"-NoLogo", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-Command", "-"}

func world(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := New(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// feed runs lines and returns what comes on stdout, line by line, and stderr.
func feed(t *testing.T, dir, input string) ([]string, string) {
	t.Helper()
	var out, errout bytes.Buffer
	Main(dir, shellArguments, strings.NewReader(input), &out, &errout)
	text := strings.TrimSuffix(strings.ReplaceAll(out.String(), "\r\n", "\n"), "\n")
	if text == "" {
		return nil, errout.String()
	}
	return strings.Split(text, "\n"), errout.String()
}

// TestLanguage holds the evaluator to what the documentation of PowerShell 5.1
// says of each construct.
func TestLanguage(t *testing.T) {
	for in, want := range map[string]string{
		`'it''s'`:          "it's",
		`"a$(1 + 2)b"`:     "a3b",
		`$x = 'q'; "<$x>"`: "<q>",
		`@(1, 2, 3).Count`: "3",
		`@().Count`:        "0",
		`@($null).Count`:   "1",
		`$x = @(1) | Where-Object { $_ -gt 5 }; @($x).Count`: "0",
		`(1, 2, 3)[1]`:                      "2",
		`@{ a = 1; B = 'x' }.b`:             "x",
		`'ABC' -eq 'abc'`:                   "True",
		`'ABC' -like 'a*'`:                  "True",
		`@('a', 'b') -contains 'B'`:         "True",
		`'b' -in @('a', 'b')`:               "True",
		`-not ''`:                           "True",
		`-not 'x' -or 1 -eq 1`:              "True",
		`1, 2 | ForEach-Object { $_ + 1 }`:  "2\n3",
		`foreach ($i in @(1, 2)) { "i$i" }`: "i1\ni2",
		`if ($false) { 1 } elseif (1 -gt 2) { 2 } else { 3 }`:                       "3",
		`try { throw 'x' } catch { $_.FullyQualifiedErrorId } finally { 'f' }`:      "x\nf",
		`try { $n = $null; $n.Trim() } catch { $_.FullyQualifiedErrorId }`:          "InvokeMethodOnNull",
		`try { Hyper-V\Get-VM -Id 'x' } catch { [string]$_.CategoryInfo.Category }`: "InvalidArgument",
		`try { No-Such } catch { $_.FullyQualifiedErrorId }`:                        "CommandNotFoundException",
		`& { param($a, $b) "$b$a" } 'x' 'y'`:                                        "yx",
		`$f = { return 1; 2 }; & $f`:                                                "1",
		`$null -eq $n`:                                                              "",
		`[long]'42' + 1`:                                                            "43",
		`[string]@(1, 2)`:                                                           "1 2",
		`[bool]'x'`:                                                                 "True",
		`$x = 'a' | Out-Null; $null -eq $x`:                                         "True",
		`$ExecutionContext.SessionState.LanguageMode`:                               "FullLanguage",
		"'a' # a comment":                                                           "a",
		`[Text.Encoding]::UTF8.GetString([Convert]::FromBase64String('w6Q='))`:      "\u00e4",
		`@(Get-Service -Name 'nobody' -ErrorAction SilentlyContinue).Count`:         "0",
	} {
		got, errout := feed(t, world(t), in+"\n")
		if text := strings.Join(got, "\n"); text != want || want != "" && errout != "" {
			t.Errorf("%s gives %q (%s), want %q", in, text, errout, want)
		}
	}
}

// TestJSON has the traps of 5.1's ConvertTo-Json.
func TestJSON(t *testing.T) {
	for in, want := range map[string]string{
		`ConvertTo-Json -InputObject @{ a = 'it''s'; b = $null; c = $true } -Compress`:     `{"a":"it\u0027s","b":null,"c":true}`,
		`ConvertTo-Json -InputObject @('one') -Compress`:                                   `["one"]`,
		`@('one') | ConvertTo-Json -Compress`:                                              `"one"`,
		`ConvertTo-Json -InputObject @{ a = @{ b = @{ c = @{ d = 1 } } } } -Compress`:      `{"a":{"b":{"c":"System.Collections.Hashtable"}}}`,
		`ConvertTo-Json -InputObject $null -Compress`:                                      ``,
		`ConvertTo-Json -InputObject @{ s = (Get-Service -Name 'vmms').Status } -Compress`: `{"s":4}`,
		`(ConvertFrom-Json -InputObject '{"A":[1],"b":"x"}').a.Count`:                      `1`,
	} {
		got, errout := feed(t, world(t), in+"\n")
		if text := strings.Join(got, "\n"); text != want {
			t.Errorf("%s gives %s (%s), want %s", in, text, errout, want)
		}
	}
}

// TestStdin: a line is a statement; an open block goes on to an empty line, and
// is dropped at the end; one statement's error ends no other.
func TestStdin(t *testing.T) {
	for in, want := range map[string]string{
		"'a'\n'b'\n":                    "a b",
		"if ($true) {\n'x'\n}\n\n'y'\n": "x y",
		"if ($true) {\n'x'\n}\n'y'\n":   "",
		"throw 'no'\n'b'\n":             "b",
		"no such { syntax\n\n'b'\n":     "b",
		"')'x\n'b'\n":                   "b",
		"$x = 1\n\"x is $x\"\n":         "x is 1",
		"'no end of the line'":          "",
		"Write-Warning 'w'\n":           "WARNING: w",
		"$WarningPreference = 'SilentlyContinue'\nWrite-Warning 'w'\n": "",
	} {
		got, _ := feed(t, world(t), in)
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%q gives %q, want %q", in, text, want)
		}
	}
}

// TestOutsideIsRefused: what the scripts are not to use.
func TestOutsideIsRefused(t *testing.T) {
	for _, text := range []string{
		`a && b`, `$a ? 1 : 2`, `$x++`, `while ($true) { }`, `function f { }`, `Get-VM | % { 1 }`, `gci`, "\"a`nb\"", `[IO.File]::ReadAllText('x')`,
		`$env:PATH`, `. { 1 }`, `$a.b++`, `1..3`, `'a' -f 1`, `@'` + "\nx\n" + `'@`, "'\u00e4'", `1MB`, `0x10`, `switch ($a) { 1 { } }`, `$x = if ($a) { 1 }`,
		`[Diagnostics.Process]::Start('x')`, `Get-VM && Get-VM`, `try { 1 }; 2`, `(1, 2`,
	} {
		if Parse(text) == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// TestBinder refuses what the real binder refuses.
func TestBinder(t *testing.T) {
	dir := world(t)
	for in, want := range map[string]string{
		`Hyper-V\Get-VM -Nam 'x'`:      "NamedParameterNotFound",
		`Hyper-V\Get-VM -Id 'no guid'`: "ParameterArgumentTransformationError",
		`Hyper-V\Get-VM -Name 'x' -Id '00000000-0000-0000-0000-000000000000'`: "AmbiguousParameterSet",
		`Hyper-V\Get-VM -Name`:                                      "MissingArgument",
		`Hyper-V\Get-VM -Name 'x' -Name 'y'`:                        "ParameterAlreadyBound",
		`Hyper-V\Start-VM`:                                          "MissingMandatoryParameter",
		`Hyper-V\Start-VM -VM $null`:                                "ParameterArgumentValidationErrorNullNotAllowed",
		`Hyper-V\Start-VM -VM 'name'`:                               "ParameterArgumentTransformationError",
		`Hyper-V\Set-VM -Name 'x' -AutomaticCheckpointsEnabled`:     "MissingArgument",
		`Hyper-V\Set-VM -Name 'x' -AutomaticStopAction Explode`:     "ParameterArgumentTransformationError",
		`Hyper-V\New-VM -Name 'x' -Generation 70000`:                "ParameterArgumentTransformationError",
		`Hyper-V\Get-VM 'a' 'b'`:                                    "PositionalParameterNotFound",
		`Other\Get-VM`:                                              "CommandNotFoundException",
		`Hyper-V\Get-VM -Name 'nobody'`:                             "InvalidParameter",
		`Hyper-V\Get-VM -Id '00000000-0000-0000-0000-000000000000'`: "ObjectNotFound",
		`Hyper-V\Stop-VM -Name 'nobody'`:                            "ObjectNotFound",
		`Hyper-V\Get-VM -Name 'nob*'; 'nothing'`:                    "",
	} {
		got, _ := feed(t, dir, `$ErrorActionPreference = 'Stop'`+"\ntry { "+in+" } catch { ([string]$_.FullyQualifiedErrorId) }\n")
		id, _, _ := strings.Cut(strings.Join(got, " "), ",")
		if want == "" {
			want = "nothing"
		}
		if id != want {
			t.Errorf("%s gives %q, want %q", in, id, want)
		}
	}
}

// TestWorldRefuses what Hyper-V refuses.
func TestWorldRefuses(t *testing.T) {
	dir := world(t)
	files := t.TempDir()
	base := filepath.Join(files, "base.vhdx")
	if err := MakeDisk(base, 1<<30); err != nil {
		t.Fatal(err)
	}
	in := func(s string) string { return strings.ReplaceAll(s, "DIR", files) }
	run := func(script string) string {
		got, errout := feed(t, dir, in("$ErrorActionPreference = 'Stop'; $WarningPreference = 'SilentlyContinue'\ntry { "+script+"; 'done' } catch { ([string]$_.FullyQualifiedErrorId) + ' ' + $_.Exception.InnerException.HResult }\n"))
		return strings.Join(got, " ") + errout
	}
	for _, c := range []struct{ script, want string }{
		{`$v = Hyper-V\New-VHD -Path 'DIR/a.vhdx' -ParentPath 'DIR/base.vhdx' -Differencing -SizeBytes 2147483648`, "done"},
		{`Hyper-V\New-VHD -Path 'DIR/a.vhdx' -ParentPath 'DIR/base.vhdx' -Differencing`, "OperationFailed"},
		{`Hyper-V\New-VHD -Path 'DIR/b.vhdx' -ParentPath 'DIR/base.vhdx' -Differencing -SizeBytes 1048576`, "InvalidParameter"},
		{`Hyper-V\New-VHD -Path 'DIR/b.vhdx' -ParentPath 'DIR/none.vhdx' -Differencing`, "OperationFailed"},
		{`Hyper-V\New-VM -Name 'x' -Generation 2 -NoVHD -Path 'DIR/none'`, "ObjectNotFound"},
		{`Hyper-V\New-VM -Name 'x' -Generation 2 -MemoryStartupBytes 1073741825 -NoVHD -Path 'DIR'`, "InvalidParameter"},
		{`Hyper-V\New-VM -Name 'x' -Generation 2 -BootDevice IDE -NoVHD -Path 'DIR'`, "InvalidParameter"},
		{`Hyper-V\New-VM -Name 'x' -Generation 2 -SwitchName 'none' -NoVHD -Path 'DIR'`, "InvalidParameter"},
		{`$v = Hyper-V\New-VM -Name 'x' -Generation 2 -MemoryStartupBytes 1073741824 -NoVHD -Path 'DIR'`, "done"},
		{`$v = Hyper-V\New-VM -Name 'x' -Generation 2 -NoVHD -Path 'DIR'`, "done"}, // names may repeat
		{`Hyper-V\Set-VM -Name 'x' -StaticMemory -DynamicMemory`, "InvalidParameter"},
		{`Hyper-V\Add-VMHardDiskDrive -VMName 'x' -ControllerType IDE -Path 'DIR/a.vhdx'`, "ObjectNotFound"},
		{`Hyper-V\Add-VMHardDiskDrive -VMName 'x' -ControllerType SCSI -Path 'DIR/none.vhdx'`, "ObjectNotFound"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Add-VMHardDiskDrive -VM $one -ControllerType SCSI -ControllerLocation 0 -Path 'DIR/a.vhdx'`, "done"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Add-VMDvdDrive -VM $one -ControllerLocation 0`, "InvalidParameter"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Set-VMNetworkAdapter -VM $one -StaticMacAddress '01-15-5D-00-00-01'`, "done"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Start-VM -VM $one`, "OperationFailed"}, // the address is a group's
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Set-VMNetworkAdapter -VM $one -StaticMacAddress '02-15-5D-00-00-01'; Hyper-V\Start-VM -VM $one`, "done"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Start-VM -VM $one`, "done"}, // a warning
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Set-VM -VM $one -ProcessorCount 2`, "InvalidState"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Remove-VM -VM $one -Force`, "InvalidState"},
		{`$one = @(Hyper-V\Get-VM)[0]; if ($one.HardDrives[0].Path -like '*.avhdx') { throw 'AutomaticCheckpoint' }`, "AutomaticCheckpoint"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Stop-VM -VM $one`, "InvalidOperation"}, // a question
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Stop-VM -VM $one -TurnOff -Force -Confirm:$false`, "done"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Remove-VM -VM $one`, "InvalidOperation"},
		{`$one = @(Hyper-V\Get-VM)[0]; Hyper-V\Remove-VM -VM $one -Force`, "done"},
		{`Hyper-V\Get-VM | Hyper-V\Remove-VM -Force`, "done"},
	} {
		got := run(c.script)
		if id, _, _ := strings.Cut(got, ","); strings.TrimSpace(id) != c.want {
			t.Errorf("%s gives %q, want %s", c.script, got, c.want)
		}
	}
	// Disks stay.
	for _, name := range []string{"base.vhdx", "a.vhdx"} {
		if _, err := os.Stat(filepath.Join(files, name)); err != nil {
			t.Errorf("%s is gone", name)
		}
	}
}

func TestConstrainedLanguageHasNoMethods(t *testing.T) {
	dir := world(t)
	if err := Update(dir, func(w *World) { w.Faults.LanguageMode = "ConstrainedLanguage" }); err != nil {
		t.Fatal(err)
	}
	got, _ := feed(t, dir, "$ExecutionContext.SessionState.LanguageMode\ntry { [Convert]::FromBase64String('') } catch { $_.FullyQualifiedErrorId }\n")
	if !slices.Equal(got, []string{"ConstrainedLanguage", "MethodInvocationNotSupportedInConstrainedLanguage"}) {
		t.Errorf("got %q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("param($p)\n@{ a = @($p.b | ForEach-Object { [string]$_ }) }")
	f.Add(`try { & { "a$($x.y[0])" } } catch { throw $_ } finally { }`)
	f.Fuzz(func(t *testing.T, text string) { Parse(text) })
}

func TestWorldSurvivesJSON(t *testing.T) {
	dir := world(t)
	if err := Update(dir, func(w *World) {
		w.VMs = append(w.VMs, &VM{ID: newGUID(), Name: "n", State: "Off", Snapshots: []*Checkpoint{{ID: newGUID(), Name: "s"}}})
	}); err != nil {
		t.Fatal(err)
	}
	w, err := Load(dir)
	if err != nil || len(w.VMs) != 1 || len(w.VMs[0].Snapshots) != 1 {
		raw, _ := json.Marshal(w)
		t.Errorf("%s, %v", raw, err)
	}
}
