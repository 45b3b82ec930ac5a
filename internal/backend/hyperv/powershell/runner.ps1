param($nonce, $code, $parameters)
# Defined once for each process, and called for each request. What the script
# outputs last is the result; what else a cmdlet may output is dropped.
$reply = @{ ok = $false }
try {
    $body = [scriptblock]::Create([Text.Encoding]::UTF8.GetString([Convert]::FromBase64String($code)))
    $p = ConvertFrom-Json -InputObject ([Text.Encoding]::UTF8.GetString([Convert]::FromBase64String($parameters)))
    $out = @(& $body $p)
    $reply.data = $null
    if ($out.Count -gt 0) { $reply.data = $out[$out.Count - 1] }
    $reply.ok = $true
} catch {
    $reply.ok = $false
    $reply.data = $null
    $reply.fqid = [string]$_.FullyQualifiedErrorId
    $reply.category = [string]$_.CategoryInfo.Category
    $reply.command = [string]$_.CategoryInfo.Activity
    $reply.message = [string]$_.Exception.Message
    $reply.hresult = [long]$_.Exception.HResult
    $reply.inner = [long]0
    if ($null -ne $_.Exception.InnerException) { $reply.inner = [long]$_.Exception.InnerException.HResult }
}
$json = ConvertTo-Json -InputObject $reply -Compress -Depth 8
[Console]::Out.WriteLine($nonce + [Convert]::ToBase64String([Text.Encoding]::UTF8.GetBytes($json)) + $nonce)
[Console]::Out.Flush()
