param($p)
# What this computer has, for the probe. Nothing here may fail for what is
# merely missing.
$os = Get-CimInstance -ClassName Win32_OperatingSystem
$computer = Get-CimInstance -ClassName Win32_ComputerSystem
$modules = @(Get-Module -ListAvailable -Name 'Hyper-V' | ForEach-Object { [string]$_.Version })
$service = Get-Service -Name 'vmms' -ErrorAction SilentlyContinue
$vmms = 'missing'
if ($null -ne $service) { $vmms = "$($service.Status)" }
$principal = [Security.Principal.WindowsPrincipal]::new([Security.Principal.WindowsIdentity]::GetCurrent())
$admin = $principal.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)
$member = $principal.IsInRole([Security.Principal.SecurityIdentifier]::new('S-1-5-32-578'))
$switches = @()
$switchError = ''
if ($vmms -eq 'Running' -and $modules.Count -gt 0 -and ($admin -or $member)) {
    try {
        $switches = @(Hyper-V\Get-VMSwitch | ForEach-Object { @{ id = [string]$_.Id; name = [string]$_.Name; type = "$($_.SwitchType)" } })
    } catch {
        $switchError = [string]$_.FullyQualifiedErrorId
    }
}
@{
    caption = [string]$os.Caption
    build = [string]$os.BuildNumber
    sku = [long]$os.OperatingSystemSKU
    hypervisor = [bool]$computer.HypervisorPresent
    modules = $modules
    vmms = $vmms
    administrator = [bool]$admin
    member = [bool]$member
    switches = $switches
    switchError = $switchError
}
