param($p)
# What the guest's integration service says, and what the host's neighbour table
# has for the MAC address of its card. Either may be empty, stale, or refused.
$vm = Hyper-V\Get-VM -Id $p.id
$service = @(Hyper-V\Get-VMNetworkAdapter -VM $vm | ForEach-Object { $_.IPAddresses } | ForEach-Object { [string]$_ })
$neighbors = @()
$neighborError = ''
try {
    $neighbors = @(Get-NetNeighbor -AddressFamily IPv4 -LinkLayerAddress $p.mac | ForEach-Object { @{ address = [string]$_.IPAddress; state = "$($_.State)" } })
} catch {
    $neighborError = [string]$_.FullyQualifiedErrorId
}
@{ state = "$($vm.State)"; service = $service; neighbors = $neighbors; neighborError = $neighborError }
