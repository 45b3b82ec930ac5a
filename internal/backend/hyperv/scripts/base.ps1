param($p)
# The disk that others are to build on.
$vhd = Hyper-V\Get-VHD -Path $p.path
@{
    format = "$($vhd.VhdFormat)"
    type = "$($vhd.VhdType)"
    size = [long]$vhd.Size
    attached = [bool]$vhd.Attached
}
