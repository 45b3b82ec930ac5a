package image

// hardwareModules are folders of kernel modules for devices that no backend's
// machine has. Left out, they are neither unpacked nor looked through.
const hardwareModules = "drivers/infiniband drivers/gpu drivers/hv drivers/xen drivers/media drivers/nvme drivers/ata drivers/usb " +
	"drivers/hid drivers/input drivers/iio drivers/mfd drivers/pci drivers/platform drivers/power drivers/edac drivers/i2c drivers/gpio " +
	"drivers/net/ethernet drivers/net/phy drivers/net/wireless drivers/net/hyperv drivers/net/xen-netback drivers/message drivers/scsi/aacraid " +
	"drivers/dma drivers/firmware drivers/hwmon drivers/leds drivers/misc drivers/mmc drivers/parport drivers/pps drivers/ptp drivers/rtc " +
	"drivers/thermal drivers/tty drivers/vfio drivers/watchdog drivers/w1 drivers/acpi drivers/cpufreq drivers/infiniband sound "

// customizeHook runs as root of the new system, $1 being its root directory.
// Modules are unpacked once here, so that no guest unpacks xz under emulation;
// depmod's index follows.
const customizeHook = `set -eu
kernel=$(ls "$1/usr/lib/modules")
cd "$1/usr/lib/modules/$kernel/kernel"
rm -rf ` + hardwareModules + `
cd /
chroot "$1" sh -c 'find /usr/lib/modules -name "*.ko.xz" -print0 | xargs -0 -r xz -d && depmod "$0"' "$kernel"
rm -f "$1/usr/lib/modules/$kernel/modules.symbols"
`
