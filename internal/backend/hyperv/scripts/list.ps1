param($p)
# The VMs with our marker, or with a name that only we can have given. Without
# rights, or without vmms, a list can be empty and no error come: whoever reads
# this looks at rights and vmms before he believes that something is not there.
$principal = [Security.Principal.WindowsPrincipal]::new([Security.Principal.WindowsIdentity]::GetCurrent())
$admin = $principal.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)
$member = $principal.IsInRole([Security.Principal.SecurityIdentifier]::new('S-1-5-32-578'))
$service = Get-Service -Name 'vmms' -ErrorAction SilentlyContinue
$vmms = 'missing'
if ($null -ne $service) { $vmms = "$($service.Status)" }
$vms = @()
if ($vmms -eq 'Running') {
    $vms = @(Hyper-V\Get-VM | Where-Object { ([string]$_.Notes).Contains($p.store) -or $p.names -contains ([string]$_.Name) } | ForEach-Object {
        @{
            id = [string]$_.Id
            name = [string]$_.Name
            notes = [string]$_.Notes
            state = "$($_.State)"
            uptime = [long]$_.Uptime.TotalSeconds
            disks = @($_.HardDrives | ForEach-Object { [string]$_.Path })
        }
    })
}
@{ vms = $vms; rights = [bool]($admin -or $member); vmms = $vmms }
