param($p)
# -NoVHD first: the VM has our marker before it has a disk.
$vm = Hyper-V\New-VM -Name $p.name -Generation 2 -MemoryStartupBytes $p.memory -NoVHD -Path $p.path
Hyper-V\Set-VM -VM $vm -Notes $p.notes
Hyper-V\Set-VM -VM $vm -ProcessorCount $p.cpus -StaticMemory -MemoryStartupBytes $p.memory -AutomaticStartAction Nothing -AutomaticStopAction TurnOff -AutomaticCheckpointsEnabled $false -CheckpointType Disabled
$disk = Hyper-V\Add-VMHardDiskDrive -VM $vm -ControllerType SCSI -ControllerNumber 0 -ControllerLocation 0 -Path $p.disk -Passthru
Hyper-V\Add-VMDvdDrive -VM $vm -ControllerNumber 0 -ControllerLocation 1 -Path $p.seed
if ($p.secureBoot) {
    Hyper-V\Set-VMFirmware -VM $vm -EnableSecureBoot On -SecureBootTemplate 'MicrosoftUEFICertificateAuthority' -FirstBootDevice $disk
} else {
    Hyper-V\Set-VMFirmware -VM $vm -EnableSecureBoot Off -FirstBootDevice $disk
}
$adapter = Hyper-V\Get-VMNetworkAdapter -VM $vm
Hyper-V\Set-VMNetworkAdapter -VMNetworkAdapter $adapter -StaticMacAddress $p.mac
Hyper-V\Connect-VMNetworkAdapter -VMNetworkAdapter $adapter -SwitchName $p.switchName
# What it is now, not what was asked for.
$made = Hyper-V\Get-VM -Id $vm.Id
$card = Hyper-V\Get-VMNetworkAdapter -VM $made
@{
    id = [string]$made.Id
    notes = [string]$made.Notes
    cpus = [long]$made.ProcessorCount
    memory = [long]$made.MemoryStartup
    dynamicMemory = [bool]$made.DynamicMemoryEnabled
    automaticCheckpoints = [bool]$made.AutomaticCheckpointsEnabled
    mac = [string]$card.MacAddress
    dynamicMac = [bool]$card.DynamicMacAddressEnabled
    switchName = [string]$card.SwitchName
    disks = @($made.HardDrives | ForEach-Object { [string]$_.Path })
}
