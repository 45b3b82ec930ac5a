param($p)
# A disk on top of the base. It is made at its final size: growing one later
# needs more rights than making it.
if ($p.size -gt 0) {
    $vhd = Hyper-V\New-VHD -Path $p.path -ParentPath $p.parent -Differencing -SizeBytes $p.size
} else {
    $vhd = Hyper-V\New-VHD -Path $p.path -ParentPath $p.parent -Differencing
}
@{ path = [string]$vhd.Path; size = [long]$vhd.Size }
