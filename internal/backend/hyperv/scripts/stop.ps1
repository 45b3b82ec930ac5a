param($p)
# The power is cut, or, if asked politely, the guest is told to shut down: that
# goes on after this returns.
$vm = Hyper-V\Get-VM -Id $p.id
if (-not ([string]$vm.Notes).Contains($p.token) -and ([string]$vm.Name) -ne $p.name) { throw 'SandboxForge.Foreign' }
if ($p.polite) {
    Hyper-V\Stop-VM -VM $vm -Force -AsJob -Confirm:$false | Out-Null
} else {
    Hyper-V\Stop-VM -VM $vm -TurnOff -Force -Confirm:$false
}
$now = Hyper-V\Get-VM -Id $p.id
@{ state = "$($now.State)" }
