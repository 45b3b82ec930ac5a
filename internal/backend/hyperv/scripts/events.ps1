param($p)
# What Hyper-V logged as an error about one VM. The newest few are enough: this
# is asked when it has just ended.
$events = @()
$failure = ''
foreach ($log in @('Microsoft-Windows-Hyper-V-Worker-Admin', 'Microsoft-Windows-Hyper-V-VMMS-Admin')) {
    try {
        $found = @(Get-WinEvent -FilterHashtable @{ LogName = $log; Level = @(1, 2) } -MaxEvents 20)
        $events = $events + @($found | Where-Object { ([string]$_.Message) -like "*$($p.id)*" } | ForEach-Object {
            @{ id = [long]$_.Id; at = [string]$_.TimeCreated.ToUniversalTime().ToString('o'); message = [string]$_.Message }
        })
    } catch {
        $failure = [string]$_.FullyQualifiedErrorId
    }
}
@{ events = $events; failure = $failure }
