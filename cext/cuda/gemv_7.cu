/* gemv_7.cu: gemv.cu for compute capability 7.5, by m8n8k16: groups of eight waves, whose rings have a stage each, because a chunk goes
 * through registers to shared memory (wave_fetch()), and nothing is fetched while another one is multiplied.
 */
#define GROUP_WAVES GEMV_FEW_WAVES
#define GEMV_STAGES GEMV_OLD_STAGES
#define GEMV_NAME(f) gemv_7_##f
#include "gemv.cu"
