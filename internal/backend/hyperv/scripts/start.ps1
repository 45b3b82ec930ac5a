param($p)
$vm = Hyper-V\Get-VM -Id $p.id
if (-not ([string]$vm.Notes).Contains($p.token)) { throw 'SandboxForge.Foreign' }
Hyper-V\Start-VM -VM $vm
$now = Hyper-V\Get-VM -Id $p.id
@{ state = "$($now.State)" }
