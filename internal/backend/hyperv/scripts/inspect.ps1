param($p)
# One VM by its id. How the error for an id that is not there looks differs
# between versions, so in doubt the list of all decides; see list.ps1 for when it
# can be believed.
$principal = [Security.Principal.WindowsPrincipal]::new([Security.Principal.WindowsIdentity]::GetCurrent())
$admin = $principal.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)
$member = $principal.IsInRole([Security.Principal.SecurityIdentifier]::new('S-1-5-32-578'))
$service = Get-Service -Name 'vmms' -ErrorAction SilentlyContinue
$vmms = 'missing'
if ($null -ne $service) { $vmms = "$($service.Status)" }
$vms = @()
if ($vmms -eq 'Running') {
    $vm = $null
    try {
        $vm = Hyper-V\Get-VM -Id $p.id
    } catch {
        $vm = Hyper-V\Get-VM | Where-Object { ([string]$_.Id) -eq $p.id }
    }
    if ($null -ne $vm) {
        $vms = @(@{
            id = [string]$vm.Id
            name = [string]$vm.Name
            notes = [string]$vm.Notes
            state = "$($vm.State)"
            uptime = [long]$vm.Uptime.TotalSeconds
            disks = @($vm.HardDrives | ForEach-Object { [string]$_.Path })
        })
    }
}
@{ vms = $vms; rights = [bool]($admin -or $member); vmms = $vmms }
