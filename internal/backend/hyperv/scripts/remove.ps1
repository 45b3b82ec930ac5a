param($p)
# The VM's entry and its checkpoints go; disks stay where they are. Their paths
# are read first: nobody knows them afterwards.
$vm = Hyper-V\Get-VM -Id $p.id
if (-not ([string]$vm.Notes).Contains($p.token) -and ([string]$vm.Name) -ne $p.name) { throw 'SandboxForge.Foreign' }
$disks = @($vm.HardDrives | ForEach-Object { [string]$_.Path })
$older = @(Hyper-V\Get-VMSnapshot -VM $vm | ForEach-Object { $_.HardDrives } | ForEach-Object { [string]$_.Path })
Hyper-V\Remove-VM -VM $vm -Force -Confirm:$false
@{ disks = @($disks + $older) }
